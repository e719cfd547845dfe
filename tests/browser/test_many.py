"""Start, stop many at once, holds and the audit."""

import re

from playwright.sync_api import expect

from stoppable._core.values import new_id

from ..waiting import wait_until
from .test_stop import LONG, button


def test_a_form_is_made_from_the_signature_and_stop_is_where_run_was(shared, page):
    page.goto(f"{shared.url}/#/start/asker")
    page.get_by_label("gate").fill("start-1")
    button(page, "Run").click()
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    expect(button(page, "Run")).to_have_count(0)
    run = page.get_by_role("link", name="Open the run").get_attribute("href").rpartition("/")[2]
    button(page, "Stop").click()
    wait_until(lambda: shared.ask("GET", f"/runs/{run}")["status"] != "running", 60)
    shared.open_gate("start-1")
    expect(page.locator(".actions .chip")).to_have_attribute("data-status", "stopped")
    expect(button(page, "Run again")).to_be_visible()


def test_typed_fields_arrive_typed(shared, page):
    page.goto(f"{shared.url}/#/start/typed")
    page.get_by_label("text").fill("<b>hi</b>")
    page.get_by_label("count").fill("7")
    page.get_by_label("loud").check()
    page.get_by_label("more").fill('{"a": [1, 2]}')
    button(page, "Run").click()
    expect(page.locator(".actions .chip")).to_have_attribute("data-status", "completed")
    page.get_by_role("link", name="Open the run").click()
    expect(page.locator(".output")).to_have_text("<b>hi</b> 7 0.5 True {'a': [1, 2]}")
    page.get_by_role("tab", name="Input").click()
    expect(page.locator(".output")).to_contain_text('"count": 7')


def test_what_the_server_refuses_is_said_beside_the_form(shared, watched):
    watched.allow("422")
    page = watched.page
    page.goto(f"{shared.url}/#/start/typed")
    page.get_by_label("text").fill("x")
    page.get_by_label("more").fill("[1]")
    button(page, "Run").click()
    expect(page.get_by_role("alert")).to_contain_text("more")
    expect(button(page, "Run")).to_be_enabled()


def test_many_are_previewed_stopped_followed_held_and_released(shared, page):
    word = new_id()[:8]
    runs = [shared.start("asker", input={"gate": word}, labels={"w": word}, policy=LONG) for _ in range(3)]
    other = shared.start("asker", policy=LONG)
    page.goto(f"{shared.url}/#/?label=w:{word}")
    button(page, "Stop these…").click()
    dialog = page.get_by_role("dialog")
    for run in runs:
        expect(dialog.get_by_text(run)).to_be_visible()
    shared.until_it_is(runs[0], "running")
    assert shared.ask("GET", f"/runs/{runs[0]}")["stop"] is None  # it was a preview
    dialog.get_by_label("Reason").fill("budget is used up")
    dialog.get_by_label("Also refuse new starts").check()
    dialog.get_by_role("button", name="Stop 3 runs").click()
    expect(dialog.get_by_text("accepted")).to_have_count(3)
    shared.open_gate(word)
    expect(dialog.get_by_text("3 of 3 are over.")).to_be_visible()
    expect(dialog.locator(".chip[data-status='stopped']")).to_have_count(3)
    dialog.get_by_role("button", name="Close").click()
    assert shared.ask("GET", f"/runs/{other}")["status"] == "running"

    page.goto(f"{shared.url}/#/audit")
    expect(page.get_by_text("budget is used up").first).to_be_visible()
    page.goto(f"{shared.url}/#/holds")
    button(page, f"Release the hold on w:{word}").click()
    expect(page.get_by_text(f"w:{word}")).to_have_count(0)
    shared.start("fails", labels={"w": word})  # it is let through again


def test_a_filter_that_only_the_page_knows_stops_what_it_shows(shared, page):
    word = new_id()[:8]
    one = shared.start("asker", f"{word}-one", policy={**LONG, "grace": 0.1})
    other = shared.start("asker", policy=LONG)
    page.goto(f"{shared.url}/#/?text={word}")
    button(page, "Stop these…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Stop 1 run").click()
    expect(dialog.get_by_text(re.compile("1 of 1 are over"))).to_be_visible()
    assert shared.ask("GET", f"/runs/{one}")["status"] == "stopped"
    assert shared.ask("GET", f"/runs/{other}")["status"] == "running"


def test_owner_and_conversation_are_asked_for_and_shown(shared, page):
    word = new_id()[:8]
    page.goto(f"{shared.url}/#/start/asker")
    page.get_by_text("more", exact=True).click()
    page.get_by_label("Owner").fill("zara")
    page.get_by_label("Conversation").fill(f"chat:{word}")
    button(page, "Run").click()
    page.get_by_role("link", name="Open the run").click()
    expect(page.get_by_text("owner zara", exact=True)).to_be_visible()
    expect(page.get_by_text(f"conversation chat:{word}", exact=True)).to_be_visible()
    run = page.url.rpartition("/")[2]
    record = shared.ask("GET", f"/runs/{run}")
    assert (record["owner"], record["key"]) == ("zara", f"chat:{word}")
    page.goto(f"{shared.url}/#/?text=chat:{word}")
    expect(page.locator(f"[data-run='{run}']")).to_be_visible()

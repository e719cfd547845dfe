"""The page of a run beyond its button: again, details of a call, the log, files, and what its address keeps."""

import json
import re

from playwright.sync_api import expect

from .test_stop import LONG, button, chip, open_run


def test_a_reason_that_was_written_before_the_stop_is_in_the_time_line_the_receipt_and_the_audit(shared, page):
    run = shared.start("asker", policy=LONG)
    open_run(page, shared, run)
    field = page.get_by_label("Reason for a stop")
    field.fill("wrong topic, again")
    field.press("Escape")  # of the field: nothing is stopped
    assert shared.ask("GET", f"/runs/{run}")["stop"] is None
    button(page, "Stop").click()
    expect(field).to_be_hidden()
    button(page, "Stop now").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(page.locator(".axis .stopname")).to_contain_text("“wrong topic, again”")
    expect(page.locator(".words")).to_contain_text("“wrong topic, again”")
    page.goto(f"{shared.url}/#/audit")
    expect(page.get_by_role("cell", name="wrong topic, again").first).to_be_visible()


def test_a_run_is_done_again_with_the_same_input_and_labels(shared, page):
    given = {"text": "again", "count": 7, "loud": True, "more": {"a": [1]}}
    run = shared.start("typed", input=given, labels={"team": "x"}, owner="zoe")
    open_run(page, shared, run)
    page.get_by_role("link", name="Run again").click()
    expect(page.get_by_label("text")).to_have_value("again")
    page.get_by_label("count").fill("8")
    button(page, "Run").click()
    expect(page.locator(".actions .chip")).to_have_attribute("data-status", "completed")
    second = page.get_by_role("link", name="Open the run").get_attribute("href").rpartition("/")[2]
    record = shared.ask("GET", f"/runs/{second}")
    assert record["input"] == {"text": "again", "count": 8, "ratio": 0.5, "loud": True, "more": {"a": [1]}}
    assert (record["labels"], record["owner"]) == ({"team": "x"}, "zoe")


def test_a_bar_opens_what_is_known_of_its_call_and_a_lane_leads_to_its_run(shared, page):
    run = shared.start("family", input={"gate": "details"}, policy=LONG)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask ×2")).to_be_visible()
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopping")
    shared.open_gate("details")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    page.locator(".lanes .bar[data-fate='finished']").first.click()
    words = re.compile(
        r"^llm ask in asker: began .* after the start; it took .* At the stop: finished, it finished by itself\.$"
    )
    expect(page.locator(".detail p")).to_have_text(words)
    page.locator(".detail").get_by_role("button", name="Close").click()
    expect(page.locator(".detail")).to_be_hidden()
    page.get_by_text("As a list").click()
    page.locator(".aslist").get_by_role("button", name="llm ask").first.click()  # with keys too
    expect(page.locator(".detail p")).to_have_text(words)
    page.locator(".lanename[data-link]").first.click()
    expect(page.locator(".runhead h1")).to_have_text("asker")


def test_a_command_is_called_a_process_everywhere(shared, page):
    run = shared.start("commands", policy={**LONG, "grace": 0.2})
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: process sleep")).to_be_visible()
    expect(page.locator(".legend")).to_have_text("process")
    button(page, "Stop").click()
    expect(button(page, "Stopped")).to_be_disabled()
    expect(page.locator(".words")).to_contain_text("In flight: process sleep, ")
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_text("process sleep", exact=True).first).to_be_visible()
    assert "spawn" not in page.locator("main").inner_text()


def test_the_log_is_searched_filtered_and_saved(shared, page):
    run = shared.start("streams")
    open_run(page, shared, run)
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_label("Type").locator("option", has_text="done")).to_have_count(1)  # nothing comes after it
    rows = page.locator(".events .row")
    expect(rows.first.locator(".at")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d\.\d\d\d$"))
    page.get_by_label("Search events").fill("line 2")
    expect(rows).to_have_count(1)
    page.get_by_label("Search events").fill("")
    page.get_by_label("Type").select_option("partial")
    expect(rows).to_have_count(2)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download as JSON").click()
    events = json.loads(saved.value.path().read_text())
    assert events[-1]["type"] == "done"


def test_the_receipt_and_the_picture_are_saved(shared, page):
    run = shared.start("asker", policy=LONG)
    shared.ask("POST", f"/runs/{run}/stop?wait=30", json={"mode": "immediate"})
    open_run(page, shared, run)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download as JSON").click()
    assert json.loads(saved.value.path().read_text())["runId"] == run
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download as SVG").click()
    picture = saved.value.path().read_text()
    assert picture.startswith("<svg")
    assert "stop · you" in picture


def test_the_address_keeps_the_tab_and_what_is_zoomed_to(shared, page):
    run = shared.start("asker", policy=LONG)
    shared.ask("POST", f"/runs/{run}/stop?wait=30", json={"mode": "immediate"})
    open_run(page, shared, run)
    page.get_by_role("tab", name="Events").click()
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile("tab=Events"))
    expect(page).to_have_url(re.compile("zoom="))
    ticks = page.locator(".axis .tick").all_text_contents()
    page.reload()
    expect(page.get_by_role("tab", name="Events")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("button", name="Earlier")).to_be_enabled()
    expect(page.locator(".axis .tick")).to_have_text(ticks)
    page.get_by_role("button", name="Fit all").click()
    expect(page).not_to_have_url(re.compile("zoom="))

"""The list of runs: what is on top, how it is sorted and chosen from, and its keys."""

import re

import pytest
from playwright.sync_api import expect

from stoppable._core.values import new_id

from .cable import Cable
from .test_pages import REFUSED, row
from .test_presses import Sent, middle, stop_the_clock, until_it_appears
from .test_stop import LONG, SHORT, button


def order(page):
    return page.locator(".row").evaluate_all("(rows) => rows.map((row) => row.dataset.run)")


def test_what_needs_somebody_is_on_top_and_what_is_live_comes_before_what_is_over(shared, page):
    word = new_id()[:8]
    labels = {"w": word}
    live = shared.start("asker", labels=labels, policy=LONG)
    lost = shared.start("deaf", input={"gate": word}, labels=labels, policy=SHORT)
    shared.until_it_asks(lost)
    shared.ask("POST", f"/runs/{lost}/stop?wait=60", json={})
    over = shared.start("streams", labels=labels)
    page.goto(f"{shared.url}/#/?label=w:{word}")
    expect(row(page, over).locator(".chip")).to_have_attribute("data-status", "completed")
    assert order(page) == [lost, live, over]
    expect(row(page, lost)).to_have_attribute("data-needs", "")
    expect(row(page, lost).locator(".doing")).to_contain_text("may still be running")
    shared.open_gate(word)  # it ends after all
    expect(row(page, lost)).not_to_have_attribute("data-needs", "")


def test_a_column_sorts_up_and_down_and_the_address_keeps_it(shared, page):
    word = new_id()[:8]
    runs = [shared.start(agent, labels={"w": word}) for agent in ("streams", "fails")]
    shared.until_it_is(runs[0], "completed")
    shared.until_it_is(runs[1], "failed")  # the list does not change under the pointer
    asker = shared.start("asker", labels={"w": word}, policy=LONG)
    page.goto(f"{shared.url}/#/?label=w:{word}")
    expect(page.locator(".row")).to_have_count(3)
    button(page, "Agent").click()
    assert order(page) == [asker, runs[1], runs[0]]
    expect(page.get_by_role("columnheader", name="Agent")).to_have_attribute("aria-sort", "ascending")
    button(page, "Agent").click()
    assert order(page) == [runs[0], runs[1], asker]
    expect(page).to_have_url(re.compile("sort=-agent"))
    page.reload()
    expect(page.locator(".row")).to_have_count(3)
    assert order(page) == [runs[0], runs[1], asker]
    expect(page.get_by_role("columnheader", name="Agent")).to_have_attribute("aria-sort", "descending")


def test_a_row_that_ends_stays_under_the_pointer_until_it_leaves(shared, page):
    word = new_id()[:8]
    first = shared.start("asker", input={"gate": word}, labels={"w": word}, policy=LONG)
    second = shared.start("asker", labels={"w": word}, policy=LONG)
    page.goto(f"{shared.url}/#/?label=w:{word}")
    expect(page.locator(".row")).to_have_count(2)
    assert order(page) == [second, first]
    row(page, second).get_by_role("button", name="Stop", exact=True).click()
    row(page, second).get_by_role("button", name="Stop now").click()
    expect(row(page, second).locator(".chip")).to_have_attribute("data-status", "stopped")
    page.wait_for_timeout(300)  # the pointer is on it
    assert order(page) == [second, first]
    page.evaluate("document.activeElement.blur()")  # first: it is when the pointer leaves that the list looks
    page.mouse.move(5, 5)
    page.get_by_label("Search").hover()
    page.wait_for_function("(first) => document.querySelector('.row').dataset.run === first", arg=first)


def test_only_the_chosen_runs_are_stopped_and_then_stopped_now(shared, page):
    word = new_id()[:8]
    runs = [shared.start("asker", labels={"w": word}, policy=LONG) for _ in range(3)]
    page.goto(f"{shared.url}/#/?label=w:{word}")
    for run in runs[:2]:
        row(page, run).get_by_role("checkbox").check()
    button(page, "Stop 2 chosen…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Stop 2 runs").click()
    expect(dialog.get_by_text("0 of 2 are over.")).to_be_visible()
    dialog.get_by_role("button", name="Stop now").click()
    expect(dialog.get_by_text("2 of 2 are over.")).to_be_visible()
    expect(dialog.get_by_role("button", name="Stop now")).to_be_hidden()
    dialog.get_by_role("button", name="Close").click()
    modes = [shared.ask("GET", f"/runs/{run}")["stop"] for run in runs]
    assert [mode and mode["mode"] for mode in modes] == ["immediate", "immediate", None]


@pytest.fixture
def chosen(shared):
    """Open the question whether two runs are to be stopped; return the dialog and their ids."""

    def show(page, server=shared):
        word = new_id()[:8]
        runs = [shared.start("asker", labels={"w": word}, policy=LONG) for _ in range(2)]
        page.goto(f"{server.url}/#/?label=w:{word}")
        for run in runs:
            row(page, run).get_by_role("checkbox").check()
        button(page, "Stop 2 chosen…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="Stop 2 runs")).to_be_enabled()
        return dialog, runs

    return show


def test_stop_now_for_many_counts_a_press_only_once_it_has_been_in_sight(chosen, page):
    modes = Sent(page).modes
    page.clock.install()
    dialog, _ = chosen(page)
    stop_the_clock(page)
    spot = middle(dialog.get_by_role("button", name="Stop 2 runs"))
    page.mouse.dblclick(*spot)
    expect(dialog.get_by_role("button", name="Stopping…")).to_be_disabled()
    harder = dialog.get_by_role("button", name="Stop now")
    assert until_it_appears(page, harder) >= 1000
    page.mouse.click(*spot)
    page.mouse.dblclick(*middle(harder))  # was meant for what was there before
    page.clock.run_for(280)
    harder.focus()
    page.keyboard.press("Enter")
    expect(harder).to_be_disabled()
    assert modes == ["graceful"] * 2
    page.clock.run_for(20)
    expect(harder).to_be_enabled()
    page.keyboard.press("Enter")
    page.clock.resume()
    expect(dialog.get_by_text("2 of 2 are over.")).to_be_visible()
    assert modes == ["graceful"] * 2 + ["immediate"] * 2


def test_an_enter_that_is_held_stops_many_once(chosen, page):
    modes = Sent(page).modes
    dialog, _ = chosen(page)
    dialog.get_by_label("Reason").focus()
    for _ in range(50):
        page.keyboard.down("Enter")
        page.wait_for_timeout(40)
    page.keyboard.up("Enter")
    expect(dialog.get_by_role("button", name="Stop now")).to_be_enabled()
    assert modes == ["graceful"] * 2


def test_a_stop_of_many_that_fails_says_so_and_can_be_pressed_again(shared, chosen, watched):
    page = watched.page
    watched.allow(REFUSED)
    with Cable(shared.url) as cable:
        dialog, _ = chosen(page, cable)
        for name, mode in (("Stop 2 runs", "Stopping…"), ("Stop now", "2 of 2 are over.")):
            expect(dialog.get_by_role("button", name=name)).to_be_enabled()
            cable.pull_out()
            dialog.get_by_role("button", name=name).click()
            words = dialog.get_by_text("Not sent: the server cannot be reached. Press again; a repeat is safe.")
            expect(words).to_be_visible()
            cable.plug_in()
            dialog.get_by_role("button", name=name).click()
            expect(dialog.get_by_text(mode)).to_be_visible()
            expect(words).to_be_hidden()
        page.goto("about:blank")


def test_the_time_filter_leaves_out_what_ended_before(shared, page):
    word = new_id()[:8]
    run = shared.start("streams", labels={"w": word})
    old = shared.start("fails", labels={"w": word})
    shared.until_it_is(run, "completed")
    shared.until_it_is(old, "failed")  # what the stream tells later is not aged

    def age(route):
        answer = route.fetch()
        body = answer.json()
        for one in body["runs"]:
            if one["id"] == old:
                for name in ("createdAt", "startedAt", "endedAt"):
                    one[name] -= 2 * 86400
        route.fulfill(response=answer, json=body)

    page.route(re.compile(r"/runs\?limit"), age)
    page.goto(f"{shared.url}/#/?label=w:{word}")
    expect(row(page, old).locator(".started")).to_have_text(re.compile(r"^\d+ [A-Z][a-z]+ \d\d:\d\d$"))
    page.get_by_label("Time").select_option("last 24 hours")
    expect(row(page, old)).to_have_count(0)
    expect(row(page, run)).to_be_visible()
    expect(page).to_have_url(re.compile("since=day"))


def test_keys_search_step_through_the_runs_and_explain_themselves(shared, page):
    word = new_id()[:8]
    runs = [shared.start("asker", labels={"w": word}, policy=LONG) for _ in range(2)]
    page.goto(f"{shared.url}/#/?label=w:{word}")
    expect(page.locator(".row")).to_have_count(2)
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys")).to_be_visible()
    page.go_back()
    expect(page.locator(".row")).to_have_count(2)
    page.keyboard.press("j")
    expect(row(page, runs[1]).locator(".agent a")).to_be_focused()
    page.keyboard.press("j")
    expect(row(page, runs[0]).locator(".agent a")).to_be_focused()
    page.keyboard.press("k")
    expect(row(page, runs[1]).locator(".agent a")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type(runs[0])
    expect(page.locator(".row")).to_have_count(1)

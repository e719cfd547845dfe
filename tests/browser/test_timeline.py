"""The time line of a real run with sub-agents that was stopped."""

import re

from playwright.sync_api import expect

from ..waiting import wait_until
from .test_stop import LONG, button, chip, open_run


def crossing(page):
    """Read from the page which bars cross the stop line, and what became of them."""
    return sorted(
        page.locator(".lanes .bar[data-crosses='true']").evaluate_all(
            "(bars) => bars.map(({dataset: {run, kind, name, fate}}) => [run, kind, name, fate])"
        )
    )


def test_the_bars_that_cross_the_stop_are_those_of_the_receipt_with_their_fates(shared, page):
    run = shared.start("planned", input={"gate": "crossing"}, policy=LONG)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask ×2")).to_be_visible()
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopping")  # the server has it
    shared.open_gate("crossing")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    receipt = shared.ask("GET", f"/runs/{run}/receipt")
    calls = sorted(
        [node["runId"], node["kind"], node["name"], node["fate"]] for node in receipt["nodes"] if node["kind"] == "llm"
    )
    assert len(calls) == 2
    expect(page.locator(".lanes .bar[data-crosses='true']:not([data-fate=''])")).to_have_count(2)
    assert crossing(page) == calls
    assert page.locator(".lanes line.stop").count() == 1
    page.get_by_text("As a list").click()
    rows = page.locator(".aslist tbody tr")
    expect(rows).to_have_count(3)
    assert sorted(rows.locator("td:last-child").all_inner_texts()) == sorted(["–", *(fate for *_, fate in calls)])


def test_a_record_that_comes_before_the_events_of_its_calls_does_not_call_them_abandoned(shared, page):
    run = shared.start("family", input={"gate": "behind"}, policy=LONG)
    wait_until(lambda: len(shared.ask("GET", f"/runs/{run}/tree")["runs"]) == 3, 60)
    shared.ask("POST", f"/runs/{run}/stop", json={})
    shared.open_gate("behind")
    log = shared.http.get(f"{shared.url}/runs/{run}/events?tree=true").text  # to its end: the run is over
    first, left, _ = log.partition("event: left")
    assert left
    rest = []

    def hold(route):
        if "last-event-id" in route.request.headers:
            rest.append(route)
        else:
            route.fulfill(content_type="text/event-stream", body=first[: first.rindex("\n\n") + 2])

    page.route(re.compile(r"/events\?tree=true"), hold)
    open_run(page, shared, run)
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    bars = page.locator(".lanes .bar[data-name='ask']")
    expect(bars).to_have_count(2)
    assert bars.evaluate_all("(bars) => bars.map((bar) => bar.dataset.fate)") == ["", ""]
    wait_until(lambda: page.wait_for_timeout(20) or rest, 60)
    rest.pop().continue_()
    expect(page.locator(".lanes .bar[data-name='ask'][data-fate='finished']")).to_have_count(2)


def test_the_picture_says_what_it_shows(shared, page):
    run = shared.start("family", input={"gate": "picture"}, policy=LONG)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask ×2")).to_be_visible()
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopping")  # the server has it
    shared.open_gate("picture")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    words = re.compile(
        r"^family: 3 runs, 2 calls in .* The stop came after .*; in flight then: llm ask finished, llm ask finished\.$"
    )
    expect(page.get_by_role("img", name=words)).to_be_visible()
    expect(page.locator(".words")).to_contain_text(
        re.compile(r"^Stopped by local at .*In flight: llm ask ×2, finished\..*Nothing is left running\.$")
    )


def test_threads_of_libraries_that_run_on_are_named_below_the_receipt(shared, page):
    run = shared.start("listening")
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    button(page, "Stop").click()
    named = re.compile(r"^Not seen by the stop: .*\(logging\.handlers\)\.$")
    expect(page.get_by_text(named)).to_be_visible()
    expect(page.locator(".words")).to_contain_text(re.compile(r"Nothing of it is left running\.$"))


def shifted(page, pixels):
    """Return what turns the wheel while Shift is held."""

    def turn():
        page.keyboard.down("Shift")
        page.mouse.wheel(0, pixels)
        page.keyboard.up("Shift")

    return turn


def test_zooming_to_the_stop_going_along_and_back(shared, page):
    run = shared.start("asker", input={"gate": "zoom"}, policy=LONG)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopping")  # the server has it
    shared.open_gate("zoom")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(page.locator(".lanes .bar[data-name='ask'][data-fate='finished']")).to_have_count(1)  # nothing more comes
    page.wait_for_function("document.querySelector('.fatename, .barname')")
    picture = page.locator(".lanes")
    whole = picture.evaluate("(svg) => svg.outerHTML")

    def wait_until_it_is(other):
        sign = "!==" if other else "==="
        page.wait_for_function(f"(whole) => document.querySelector('.lanes').outerHTML {sign} whole", arg=whole)

    page.get_by_role("button", name="To the stop").click()
    wait_until_it_is(other=True)
    zoomed = picture.evaluate("(svg) => svg.outerHTML")
    for there, back in (
        (lambda: button(page, "Earlier").click(), lambda: button(page, "Later").click()),
        (shifted(page, -200), shifted(page, 200)),
    ):
        picture.hover()
        there()
        page.wait_for_function("(zoomed) => document.querySelector('.lanes').outerHTML !== zoomed", arg=zoomed)
        back()
    picture.dblclick()
    wait_until_it_is(other=False)
    expect(button(page, "Earlier")).to_be_disabled()
    picture.hover()
    page.mouse.wheel(0, -300)
    wait_until_it_is(other=True)
    page.get_by_role("button", name="Fit all").click()
    wait_until_it_is(other=False)

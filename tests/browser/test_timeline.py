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
        [node["runId"], node["kind"], node["name"], node["fate"]]
        for node in receipt["entries"]
        if node["kind"] == "llm"
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
    tree = f"/runs/{run}/tree"  # both have to be in their call, or there is none for the stop to wait for
    wait_until(lambda: sum(one["inFlight"] == ["llm:ask"] for one in shared.ask("GET", tree)["runs"]) == 2, 60)
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
        re.compile(r"^Stopped\. Nothing is left running\. Requested by you at .*In flight: llm ask ×2, finished\.$")
    )


def test_threads_of_libraries_that_run_on_are_named_below_the_receipt(shared, page):
    run = shared.start("listening")
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    button(page, "Stop").click()
    named = re.compile(r"^Not seen by the stop: .*\(logging\.handlers\)\.$")
    expect(page.get_by_text(named)).to_be_visible()
    expect(page.locator(".words")).to_contain_text(re.compile(r"^Stopped\. Nothing of it is left running\."))


def test_a_remote_that_cannot_confirm_its_end_is_named_beside_the_button_and_in_the_receipt(shared, page):
    run = shared.start("asking")
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: remote elsewhere")).to_be_visible()
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(page.get_by_text("told to stop, does not say whether it did: remote elsewhere")).to_be_visible()
    words = "Told to stop; it does not say whether it did: remote elsewhere. Nothing else is left running."
    expect(page.locator(".words")).to_contain_text(words)


def on_store_clock(page, pixels):
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
        (on_store_clock(page, -200), on_store_clock(page, 200)),
    ):
        picture.hover()
        there()
        page.wait_for_function("(zoomed) => document.querySelector('.lanes').outerHTML !== zoomed", arg=zoomed)
        back()
    picture.dblclick()
    wait_until_it_is(other=False)
    expect(button(page, "Earlier")).to_be_disabled()
    picture.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    wait_until_it_is(other=True)
    page.get_by_role("button", name="Fit all").click()
    wait_until_it_is(other=False)


def fates_to_read(page):
    """Return the words on the picture that say what became of a call."""
    return page.locator(".lanes :is(.fatename, .barname)").all_text_contents()


def test_of_forty_calls_at_once_those_that_cross_the_stop_have_rows_and_the_rest_opens(shared, page):
    run = shared.start("wide", policy={"grace": 0.3, "interrupt": 0.2, "cancel": 2.0})
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: tool fetch_37, tool fetch_38, tool fetch_39")).to_be_visible()
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(page.locator(".lanes .bar[data-crosses='true']:not([data-fate=''])")).to_have_count(3)
    receipt = shared.ask("GET", f"/runs/{run}/receipt")
    calls = sorted(
        [one["runId"], one["kind"], one["name"], one["fate"]] for one in receipt["entries"] if one["name"][0] == "f"
    )
    assert crossing(page) == calls
    assert len(calls) == 3
    for *_, fate in calls:
        assert [fate in words for words in fates_to_read(page)].count(True) == 3, fates_to_read(page)
    boxes = page.locator(".lanes .bar").evaluate_all(
        "(bars) => bars.map((bar) => ['x', 'y', 'width'].map((name) => Math.round(+bar.getAttribute(name))))"
    )
    assert len({(x, y) for x, y, _ in boxes}) == len(boxes)  # none is on top of another
    page.locator(".foldname", has_text=re.compile(r"^\+\d+ calls")).click()
    expect(page.locator(".lanes .bar")).to_have_count(40)
    assert page.locator(".lanesbox").bounding_box()["height"] <= 480
    page.get_by_role("button", name="Fold").click()
    expect(page.locator(".foldname", has_text=re.compile(r"^\+\d+ calls"))).to_be_visible()


def test_of_many_children_some_have_lanes_and_the_rest_is_counted(shared, page):
    run = shared.start("crowd", input={"count": 40, "gate": "lanes"}, policy=LONG)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask ×40")).to_be_visible()
    shared.ask("POST", f"/runs/{run}/stop", json={})
    shared.open_gate("lanes")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    rest = page.locator(
        ".foldname", has_text=re.compile(r"^\+30 sub-runs: 30 stopped · their calls at the stop: 30 finished$")
    )
    expect(rest).to_be_visible()
    expect(page.locator(".lanemark")).to_have_count(11)
    box = page.locator(".lanesbox")
    box.hover()
    drawn = page.locator(".axis").evaluate("(svg) => svg.outerHTML")
    page.mouse.wheel(0, 600)
    page.wait_for_function(
        "() => document.querySelector('main').scrollTop + document.querySelector('.lanesbox').scrollTop > 0"
    )
    assert page.locator(".axis").evaluate("(svg) => svg.outerHTML") == drawn  # it has not zoomed
    rest.click()
    expect(page.locator(".lanemark")).to_have_count(41)
    assert box.bounding_box()["height"] <= 480
    # in one go: the wheel may still be turning the page
    axis = box.evaluate(
        "(box) => (box.scrollTo(0, 500), [box.scrollTop, ...[box, box.querySelector('.axis')]"
        ".map((one) => one.getBoundingClientRect().y)])"
    )
    assert axis[0] > 0
    assert abs(axis[2] - axis[1]) < 2


def test_a_log_that_was_full_invents_no_call(shared, page):
    run = shared.start("chatty", policy=LONG)
    shared.until_it_asks(run)
    open_run(page, shared, run)
    notes = page.get_by_text(
        re.compile(r"^Calls of chatty after \d\d:\d\d:\d\d were not recorded: its log was full\.$")
    )
    expect(notes).to_be_visible()
    expect(page.get_by_text("Its log is full: what is in flight is not recorded.")).to_be_visible()
    expect(page.locator(".lanes .bar")).to_have_count(1)
    expect(page.locator(".lanes .bar.open")).to_have_count(0)
    expect(page.locator(".lanes .unknown")).to_have_count(1)
    assert "not recorded" in fates_to_read(page)[0]
    button(page, "Stop").click()
    button(page, "Stop now").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    picture = page.get_by_role("img", name=re.compile("in flight then: tool second"))
    expect(picture).to_be_visible()
    expect(page.locator(".words")).to_contain_text("In flight: tool second, cancelled.")
    assert crossing(page) == []


def test_a_call_whose_process_died_ends_at_the_last_sign_of_life(own, watched):
    page = watched.page
    watched.allow("net::ERR_")
    run = own.start("asker", policy=LONG)
    own.until_it_asks(run)
    page.goto(f"{own.url}/#/runs/{run}")
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    own.close()
    page.wait_for_timeout(1500)
    own.open()
    expect(chip(page)).to_have_attribute("data-status", "failed")
    expect(page.get_by_text(re.compile(r"^The process that ran asker was gone; last sign of life at "))).to_be_visible()
    expect(page.locator(".lanes .unknown")).to_have_count(1)
    bar = page.locator(".lanes .bar[data-name='ask']").bounding_box()
    assert bar["width"] < 0.6 * page.locator(".lanes .life").bounding_box()["width"]


def test_the_axis_speaks_in_the_units_of_its_steps(shared, page):
    page.goto(shared.url)
    said = page.evaluate("""async () => {
        const {moment, niceStep} = await import("/ui/layout.js");
        const places = [[7200, 3600], [9000, 1800], [150, 30], [12, 2], [0.2, 0.05], [0.0005, 0.0005]];
        return places.map(([at, step]) => moment(at, step)).concat([100, 2000, 4000].map(niceStep));
    }""")
    assert said == ["2 h", "2 h 30 min", "2 min 30 s", "12 s", "200 ms", "0.5 ms", 120, 3600, 7200]


def test_the_fate_of_a_call_is_readable_without_zooming(shared, page):
    run = shared.start("asker", policy={**LONG, "grace": 0.2, "interrupt": 0.1})
    shared.until_it_asks(run)
    page.wait_for_timeout(3000)  # the stop is a thin strip at the end
    shared.ask("POST", f"/runs/{run}/stop?wait=30", json={})
    open_run(page, shared, run)
    expect(page.locator(".lanes .fatename")).to_have_text("cancelled")

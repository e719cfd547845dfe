"""Every part of a screen tells the same story, also while the server is away."""

import re

from playwright.sync_api import expect

from .cable import Cable
from .test_pages import REFUSED, row
from .test_stop import LONG, SHORT, button, chip, open_run

WATCH = """() => {
    window.stories = new Set();
    window.words = new Set();
    const look = () => {
        const text = (selector) => document.querySelector(selector)?.textContent ?? "";
        const host = document.querySelector(".runhead stoppable-button").shadowRoot;
        const mark = document.querySelector(".lanemark")?.dataset.status ?? "";
        const [line, pressed] = ["[part=line]", "[part=button]"].map((part) => host.querySelector(part)?.textContent);
        if (pressed !== undefined) stories.add([text(".runhead .chip"), mark, pressed].join(" | "));
        if (line !== undefined) words.add(line.replace(/\\d+/g, "N"));
        requestAnimationFrame(look);
    };
    look();
}"""


def test_chip_lane_and_button_tell_the_same_while_many_children_are_stopped(shared, page):
    run = shared.start("crowd", input={"count": 60, "gate": "crowd"}, policy={**LONG, "grace": 2.0})
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask ×60")).to_be_visible()
    page.evaluate(WATCH)
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopping")
    shared.open_gate("crowd")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(button(page, "Stopped")).to_be_disabled()
    stories = {tuple(one.split(" | ")) for one in page.evaluate("[...stories]")}
    for status, lane, label in stories:
        assert status == lane, stories
        assert (label == "Stopped") == (status == "stopped"), stories
        assert (label == "Stop") <= (status == "running"), stories
    assert not any("Infinity" in words or "NaN" in words for words in page.evaluate("[...words]"))


def test_a_blocked_thread_is_said_to_be_beyond_a_kill(shared, page):
    run = shared.start("deaf", input={"gate": "beyond"}, policy={**LONG, "cancel": 20.0, "kill": 20.0})
    shared.until_it_asks(run)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: tool block")).to_be_visible()
    button(page, "Stop").click()
    button(page, "Stop now").click()
    expect(page.get_by_text("Cancelled, but still in tool block. If nothing can end it:")).to_be_visible()
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^unconfirmed in \d+ s\.$"))
    shared.open_gate("beyond")


def test_a_run_that_ended_after_all_says_that_first(shared, page):
    run = shared.start("deaf", input={"gate": "after-all"}, policy=SHORT)
    shared.until_it_asks(run)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: tool block")).to_be_visible()
    shared.ask("POST", f"/runs/{run}/stop?wait=60", json={})
    page.goto(f"{shared.url}/#/?text={run}")
    expect(row(page, run).locator(".chip")).to_have_text("unconfirmed")
    shared.open_gate("after-all")
    expect(row(page, run).locator(".doing")).to_have_text(re.compile(r"^ended by itself at \d\d:\d\d:\d\d$"))
    open_run(page, shared, run)
    expect(button(page, "Ended late")).to_be_disabled()
    expect(page.locator(".words")).to_have_text(re.compile(r"^It ended by itself at \d\d:\d\d:\d\d, after "))


def test_offline_everything_stands_still_and_says_since_when(shared, watched):
    page = watched.page
    watched.allow(REFUSED)
    run = shared.start("asker", policy=LONG)
    with Cable(shared.url) as cable:
        for address in (f"#/?text={run}", f"#/runs/{run}"):
            page.goto(f"{cable.url}/{address}")
            expect(page.locator("main .chip[data-status='running']:visible").last).to_be_visible()
            expect(page.locator("#connection")).to_have_text("live")
            cable.pull_out()
            as_of = re.compile(r"^As of \d\d:\d\d:\d\d: the server cannot be reached")
            expect(page.get_by_text(as_of)).to_be_visible()
            assert "grayscale" in page.locator("main").evaluate("(main) => getComputedStyle(main).filter")
            clocks = page.locator("main .mono")
            before = clocks.all_inner_texts()
            page.wait_for_timeout(1500)
            assert clocks.all_inner_texts() == before
            cable.plug_in()
            expect(page.get_by_text(as_of)).to_be_hidden()
            expect(page.locator("#connection")).to_have_text("live")
            page.wait_for_function(
                "(before) => [...document.querySelectorAll('main .mono')]"
                ".map((one) => one.innerText).join() !== before",
                arg=",".join(before),
            )
        page.goto("about:blank")


def test_a_tab_that_was_asleep_shows_how_it_is_when_it_returns(shared, page):
    run = shared.start("asker", policy=LONG)
    open_run(page, shared, run)
    expect(page).to_have_title(re.compile("^asker running"))
    sleep = (
        "(isHidden) => (Object.defineProperty(document, 'hidden', {value: isHidden, configurable: true}),"
        " document.dispatchEvent(new Event('visibilitychange')))"
    )
    page.evaluate(sleep, True)
    shared.ask("POST", f"/runs/{run}/stop?wait=60", json={"mode": "immediate"})
    page.evaluate(sleep, False)
    expect(page).to_have_title(re.compile("^asker stopped"))
    expect(page.locator("#connection")).to_have_text("live")


def test_every_page_that_was_opened_offline_comes_by_itself(shared, watched):
    page = watched.page
    watched.allow(REFUSED)
    run = shared.start("asker", policy=LONG)
    with Cable(shared.url) as cable:
        page.goto(cable.url)
        expect(page.locator("#connection")).to_have_text("live")
        for address, ready in (
            (f"#/runs/{run}", page.get_by_text("in flight: llm ask")),
            ("#/agents", page.get_by_role("link", name="Start asker")),
            ("#/audit", page.get_by_role("columnheader", name="Why")),
        ):
            cable.pull_out()
            expect(page.locator("#connection")).to_contain_text("offline")
            page.evaluate("(to) => (location.hash = to)", address)
            expect(page.get_by_role("button", name="Try again")).to_be_visible()
            cable.plug_in()
            expect(ready).to_be_visible()
        page.goto("about:blank")

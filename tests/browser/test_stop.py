"""Stop, seen from the page: every state of the button, and the line beside it."""

import re

from playwright.sync_api import expect

from ..waiting import wait_until

LONG = {"grace": 600.0, "interrupt": 1.0, "cancel": 600.0, "kill": 600.0}
SHORT = {"grace": 0.2, "interrupt": 0.1, "cancel": 0.2, "kill": 0.2}


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


def chip(page):
    return page.locator(".runhead .chip")


def open_run(page, server, run_id):
    page.goto(f"{server.url}/#/runs/{run_id}")
    expect(page.locator(".runhead")).to_be_visible()


def test_stop_names_the_call_counts_down_and_ends_gray_once_the_call_has_finished(shared, page):
    run = shared.start("asker", input={"gate": "stop-1"}, policy={**LONG, "grace": 60.0})
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    button(page, "Stop").click()
    expect(page.get_by_text("Stopping… after the current llm call (ask).")).to_be_visible()
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^Forced in [1-6]?\d s\.$"))
    first = page.get_by_role("timer").inner_text()
    expect(page.get_by_role("timer")).not_to_have_text(first)  # it goes down
    expect(chip(page)).to_have_attribute("data-status", "stopping")
    assert page.get_by_text("Stopped", exact=True).count() == 0  # never past tense before it is true
    shared.open_gate("stop-1")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(button(page, "Stopped")).to_be_disabled()
    expect(page.get_by_text(re.compile(r"^by you, "))).to_be_visible()
    page.get_by_role("tab", name="Output").click()
    expect(page.locator(".output")).to_contain_text("the answer that was paid for")


def test_stop_now_cancels(shared, page):
    run = shared.start("asker", policy=LONG)
    open_run(page, shared, run)
    button(page, "Stop").click()
    button(page, "Stop now").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    assert shared.ask("GET", f"/runs/{run}")["stop"]["mode"] == "immediate"


def test_kill_asks_once_in_place_and_keep_waiting_keeps_waiting(shared, page):
    run = shared.start("tidy", input={"gate": "kill-1"}, policy={**LONG, "kill": 0.5})
    open_run(page, shared, run)
    button(page, "Stop").click()
    button(page, "Stop now").click()
    expect(page.get_by_text("Cancelling… clean-up is running.")).to_be_visible()
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^Killed in \d+ s\.$"))
    button(page, "Kill").click()
    expect(page.get_by_text("Kill without clean-up?")).to_be_visible()
    expect(button(page, "Keep waiting")).to_be_focused()  # two quick presses do not kill
    button(page, "Keep waiting").click()
    assert shared.ask("GET", f"/runs/{run}")["stop"]["mode"] == "immediate"
    button(page, "Kill").click()
    page.wait_for_timeout(600)  # the question is read before an answer counts
    page.get_by_role("group").get_by_role("button", name="Kill", exact=True).click()
    wait_until(lambda: shared.ask("GET", f"/runs/{run}")["stop"]["mode"] == "kill", 60)
    shared.open_gate("kill-1")
    expect(chip(page)).to_have_attribute("data-status", re.compile("stopped|lost"))


def test_a_tree_is_gray_from_top_to_bottom_and_its_sibling_goes_on(shared, page):
    sibling = shared.start("family", input={"gate": "tree-other"})

    def statuses():
        return [one["status"] for one in shared.ask("GET", f"/runs/{sibling}/tree")["runs"]]

    wait_until(lambda: statuses() == ["running"] * 3, 60)
    run = shared.start("family", input={"gate": "tree-1"}, policy=LONG)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: llm ask ×2")).to_be_visible()
    button(page, "Stop").click()
    expect(page.get_by_text("Stopping… after the current calls (llm ask ×2).")).to_be_visible()
    shared.open_gate("tree-1")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    marks = page.locator(".lanemark")
    expect(marks).to_have_count(3)
    for n in range(3):
        expect(marks.nth(n)).to_have_attribute("data-status", "stopped")
    assert statuses() == ["running"] * 3


def test_escape_is_the_first_press(shared, page):
    run = shared.start("asker", policy=LONG)
    open_run(page, shared, run)
    expect(button(page, "Stop")).to_be_visible()
    page.keyboard.press("Escape")
    expect(button(page, "Stop now")).to_be_visible()
    expect(chip(page)).to_have_attribute("data-status", "stopping")
    assert shared.ask("GET", f"/runs/{run}")["stop"]["mode"] == "graceful"


def test_the_keyboard_alone_finds_a_run_and_stops_it(shared, page):
    run = shared.start("asker", policy=LONG)
    page.goto(f"{shared.url}/#/?text={run}")
    expect(page.locator(f"[data-run='{run}']")).to_be_visible()
    page.keyboard.press("Tab")
    while not page.locator(f"[data-run='{run}'] a").evaluate("(link) => link === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(button(page, "Stop")).to_be_visible()
    while not page.evaluate("document.activeElement.localName === 'stoppable-button'"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(button(page, "Stop now")).to_be_enabled()
    page.keyboard.press("Tab")  # another control: Enter alone never escalates
    page.keyboard.press("Enter")
    expect(chip(page)).to_have_attribute("data-status", "stopped")


FOCUSED = """() => {
    let one = document.activeElement;
    while (one.shadowRoot?.activeElement) one = one.shadowRoot.activeElement;
    return one.id || one.textContent.trim();
}"""


def tab_to(page, name):
    """Press Tab until something with this id or text has the focus."""
    for _ in range(60):
        if page.evaluate(FOCUSED) == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {name}")


def test_the_keyboard_alone_starts_stops_stops_now_and_kills(shared, page):
    page.goto(f"{shared.url}/#/start/tidy")
    expect(button(page, "Run")).to_be_visible()
    tab_to(page, "input-gate")
    page.keyboard.type("keys-1")
    tab_to(page, "Run")
    page.keyboard.press("Enter")
    address = page.get_by_role("link", name="Open the run").get_attribute("href")
    shared.until_it_asks(address.rpartition("/")[2])
    for name in ("Stop", "Stop now", "Kill"):
        expect(button(page, name)).to_be_enabled()
        tab_to(page, name)
        page.keyboard.press("Enter")
    expect(button(page, "Keep waiting")).to_be_focused()
    page.wait_for_timeout(700)  # a person reads it first
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(button(page, "Killing…")).to_be_disabled()
    shared.open_gate("keys-1")
    expect(page.locator(".actions .chip")).to_have_attribute("data-status", "stopped")


def test_the_keyboard_alone_stops_many_and_stops_them_now(shared, page):
    run = shared.start("asker", labels={"w": "keys-2"}, policy=LONG)
    page.goto(f"{shared.url}/#/?label=w:keys-2")
    expect(page.locator(f"[data-run='{run}']")).to_be_visible()
    dialog = page.get_by_role("dialog")
    for place, name in ((page, "Stop these…"), (dialog, "Stop 1 run"), (dialog, "Stop now")):
        expect(button(place, name)).to_be_enabled()
        tab_to(page, name)
        page.keyboard.press("Enter")
    expect(page.get_by_text("1 of 1 are over.")).to_be_visible()
    tab_to(page, "Close")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)


def test_what_cannot_be_ended_is_unconfirmed_by_name_and_its_late_end_is_told(shared, page):
    run = shared.start("deaf", input={"gate": "late-1"}, policy=SHORT)
    shared.until_it_asks(run)
    open_run(page, shared, run)
    expect(page.get_by_text("in flight: tool block")).to_be_visible()
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "lost")
    expect(chip(page)).to_have_text("unconfirmed")
    expect(button(page, "Unconfirmed")).to_be_disabled()
    expect(page.get_by_text(re.compile("^May still be running: .*deaf"))).to_be_visible()
    shared.open_gate("late-1")
    expect(page.get_by_text(re.compile(r"^Was unconfirmed; ended by itself at \d\d:\d\d:\d\d"))).to_be_visible()


def test_a_failed_run_says_the_last_line_of_its_error_and_has_no_button(shared, page):
    run = shared.start("fails", input={"message": "first line\nthe last <b>line</b>"})
    open_run(page, shared, run)
    expect(chip(page)).to_have_attribute("data-status", "failed")
    expect(page.locator(".error .why")).to_have_text("ValueError: first line\nthe last <b>line</b>")
    assert page.locator("stoppable-button button:visible").count() == 0
    page.get_by_text("traceback", exact=True).click()
    expect(page.locator(".traceback pre")).to_contain_text("ValueError: first line")


def test_a_stop_that_came_too_late_says_so(shared, page):
    run = shared.start("deaf", input={"gate": "too-late"}, policy=LONG)
    shared.until_it_asks(run)
    open_run(page, shared, run)
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopping")  # the server has it
    shared.open_gate("too-late")
    expect(chip(page)).to_have_attribute("data-status", "completed")
    expect(page.get_by_text("Finished before the stop arrived.")).to_be_visible()


def test_a_run_that_never_looked_is_said_to_be_unable_to_obey(shared, page):
    run = shared.start("blind", policy={**LONG, "blindGrace": 60.0})
    shared.until_it_is(run, "running")  # a stop before that would end it at once
    open_run(page, shared, run)
    button(page, "Stop").click()
    expect(page.get_by_text("Stopping… it has met no boundary or check, so it cannot obey.")).to_be_visible()
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^Cancelled in [1-6]?\d s\.$"))
    button(page, "Stop now").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")

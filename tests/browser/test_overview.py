"""The overview, two runs beside each other, help, and what a person sets for the browser."""

import re

from playwright.sync_api import expect

from ..served import DEADLINE
from ..waiting import wait_until
from .conftest import serving
from .test_stop import LONG, SHORT, button, chip, open_run


def tile(page, name):
    return page.locator(".tile", has_text=name).locator("strong")


def test_the_overview_counts_what_began_what_stops_took_and_what_needs_a_look(tmp_path, watched):
    page = watched.page
    watched.allow("net::ERR_")  # its server ends before it
    with serving(tmp_path) as server:
        stopped = server.start("asker", policy=LONG)
        server.until_it_asks(stopped)
        server.ask("POST", f"/runs/{stopped}/stop?wait=60", json={"mode": "immediate"})
        lost = server.start("deaf", input={"gate": "overview"}, policy=SHORT)
        server.until_it_asks(lost)
        server.ask("POST", f"/runs/{lost}/stop?wait=60", json={})
        server.ask("POST", f"/runs/{server.start('streams')}/stop?wait=60", json={})  # it is over either way
        live = server.start("asker", policy=LONG)
        server.ask("POST", "/stops", json={"selector": {"owner": "zoe"}, "hold": True, "reason": "budget"})
        page.goto(f"{server.url}/#/overview")
        expect(tile(page, "running")).to_have_text("1")
        expect(tile(page, "unconfirmed")).to_have_text("1")
        expect(tile(page, "hold in force")).to_have_text("1")
        expect(
            page.get_by_role("img", name=re.compile(r"^4 began; of these, [12] stopped and 1 unconfirmed"))
        ).to_be_visible()
        page.get_by_text("The numbers").click()
        numbers = page.get_by_role("region", name="Runs by time").locator("tbody tr")
        assert sum(int(began) for began in numbers.locator("td:nth-child(2)").all_inner_texts()) == 4
        page.get_by_role("heading", name="Overview").click()  # what has the focus is not made anew
        expect(page.get_by_role("row", name=re.compile("^was cancelled 1 "))).to_be_visible()
        expect(page.get_by_role("row", name=re.compile(f"^asker {stopped} "))).to_be_visible()
        # it follows what happens
        server.ask("POST", f"/runs/{live}/stop", json={})
        expect(tile(page, "stopping")).to_have_text("1")
        server.ask("POST", f"/runs/{live}/stop?wait=60", json={"mode": "immediate"})
        expect(tile(page, "stopping")).to_have_text("0")
        expect(page.get_by_role("row", name=re.compile("^was cancelled 2 "))).to_be_visible()
        page.locator(".tile", has_text="unconfirmed").click()
        expect(page.locator(f".row[data-run='{lost}']")).to_be_visible()
        server.open_gate("overview")


# It is drawn again with each event, so both are read at once.
SAME_SCALE = """() => {
    const read = (axis) => [...axis.querySelectorAll(".tick")].map((tick) => tick.textContent);
    const [first, second] = [...document.querySelectorAll(".attempt .axis")].map(read);
    return first.length > 1 && first.join() === second.join();
}"""


def test_two_attempts_are_seen_beside_each_other_on_one_scale(shared, watched):
    page = watched.page
    runs = [shared.start("asker", input={"gate": f"compare-{number}"}, policy=LONG) for number in range(2)]
    for number, run in enumerate(runs):
        shared.until_it_asks(run)
        shared.ask("POST", f"/runs/{run}/stop", json={"reason": f"reason {number}"})
        shared.open_gate(f"compare-{number}")
        shared.ask("POST", f"/runs/{run}/stop?wait=60", json={})
    open_run(page, shared, runs[1])
    choice = page.get_by_label("Compare with")
    value = choice.locator("option", has_text=runs[0]).get_attribute("value")
    choice.select_option(value)
    expect(page.get_by_role("heading", name="Two runs")).to_be_visible()
    expect(page).to_have_url(f"{shared.url}/#/compare/{runs[0]}/{runs[1]}")
    expect(page.get_by_role("row", name=re.compile("^Stop .*reason 0.*reason 1"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^Input .*compare-0.*compare-1"))).to_be_visible()
    pictures = page.locator(".attempt .axis")
    expect(pictures).to_have_count(2)
    page.wait_for_function(SAME_SCALE)
    expect(page.locator(".beside .output").filter(has_text="the answer that was paid for")).to_have_count(2)
    watched.allow("404")
    page.goto(f"{shared.url}/#/compare/{runs[0]}/nowhere")
    expect(page.get_by_text("There is no run nowhere")).to_be_visible()


def test_what_a_run_puts_out_is_shown_where_it_was_started_and_beside_the_attempt_before(shared, page):
    page.goto(f"{shared.url}/#/start/streams")
    button(page, "Run").click()
    expect(page.locator(".actions .chip")).to_have_attribute("data-status", "completed")
    expect(page.locator(".output").first).to_have_text("line 1\nline 2\n")
    expect(page.locator(".result .output")).to_have_text("all done")
    button(page, "Run again").click()
    page.get_by_role("link", name="Compare with the one before").click()
    expect(page.locator(".beside .result .output")).to_have_text(["all done", "all done"])


def test_the_words_and_signs_are_explained_and_the_colours_are_chosen(shared, page):
    page.emulate_media(color_scheme="light")
    page.goto(f"{shared.url}/#/")
    page.get_by_role("link", name="Help").click()
    for words in ["It was stopped, and nothing of it is left running.", "Everything is ended at once", "search"]:
        expect(page.get_by_text(words).first).to_be_visible()
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.get_by_label("Colours").select_option("Dark")
    dark = page.evaluate(colour)
    assert dark != light
    page.reload()
    expect(page.get_by_label("Colours")).to_have_value("dark")
    assert page.evaluate(colour) == dark
    page.get_by_label("Colours").select_option("Colours of the system")
    assert page.evaluate(colour) == light


# The browser's own notification, of which a page cannot see whether it was shown.
WATCHED = """
window.told = [];
window.Notification = class extends Notification {
    constructor(title, options) {
        super(title, options);
        told.push([title, options.body]);
    }
};
"""


def test_somebody_who_looks_at_something_else_is_told_when_a_run_ends(shared, page):
    page.context.grant_permissions(["notifications"], origin=shared.url)
    page.add_init_script(WATCHED)
    runs = [shared.start("asker", input={"gate": f"told-{number}"}, policy=LONG) for number in range(2)]
    for run in runs:
        shared.until_it_asks(run)
        open_run(page, shared, run)
        button(page, "Tell me when it ends").click()
        expect(button(page, "You will be told")).to_be_visible()
    page.get_by_role("link", name="Agents").click()
    shared.ask("POST", f"/runs/{runs[0]}/stop", json={"mode": "immediate"})
    wait_until(lambda: page.evaluate("told.length"), 2 * DEADLINE)
    assert page.evaluate("told") == [["asker stopped", f"Run {runs[0]}"]]
    open_run(page, shared, runs[1])
    button(page, "You will be told").click()  # or not
    expect(button(page, "Tell me when it ends")).to_be_visible()


def test_the_tab_shows_the_state_of_the_run(shared, page):
    run = shared.start("asker", policy=LONG)
    icon = page.locator("link[rel=icon]")
    open_run(page, shared, run)
    expect(icon).to_have_attribute("href", re.compile("^blob:"))
    running = icon.get_attribute("href")
    button(page, "Stop").click()
    button(page, "Stop now").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    assert icon.get_attribute("href") != running
    page.get_by_role("link", name="Help").click()
    expect(icon).to_have_attribute("href", re.compile(r"icon\.svg$"))

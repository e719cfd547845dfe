"""The pages besides the button: the list, offline, hostile text, owners, keys."""

import json
import re

from playwright.sync_api import expect

from stoppable._core.values import new_id

from ..waiting import wait_until
from .cable import Cable
from .conftest import serving
from .test_stop import LONG, button, chip, open_run

REFUSED = "net::ERR_"


def row(page, run_id):
    return page.locator(f".row[data-run='{run_id}']")


def test_a_run_appears_changes_and_ends_in_the_list_by_itself(shared, page):
    label = f"t:{new_id()[:8]}"
    page.goto(f"{shared.url}/#/?label={label}")
    expect(page.get_by_text(re.compile("No run matches|No runs yet"))).to_be_visible()
    run = shared.start("asker", input={"gate": label[2:]}, labels={"t": label[2:]}, policy=LONG)
    expect(row(page, run).locator(".chip")).to_have_attribute("data-status", "running")
    expect(row(page, run).locator(".doing")).to_have_text("llm ask")
    row(page, run).get_by_role("button", name="Stop", exact=True).click()
    expect(row(page, run).locator(".chip")).to_have_attribute("data-status", "stopping")
    shared.open_gate(label[2:])
    expect(row(page, run).locator(".chip")).to_have_attribute("data-status", "stopped")
    expect(row(page, run).get_by_role("button", name=re.compile("Stop"))).to_have_count(0)


def test_the_filter_is_in_the_address(shared, page):
    word = new_id()[:8]
    one = shared.start("fails", labels={"w": word})
    two = shared.start("asker", labels={"w": word}, policy=LONG)
    page.goto(f"{shared.url}/#/?label=w:{word}")
    expect(row(page, one)).to_be_visible()
    expect(row(page, two)).to_be_visible()
    page.locator(".chips [data-status='failed']").click()
    expect(row(page, two)).to_have_count(0)
    expect(page).to_have_url(re.compile("status=failed"))
    page.reload()
    expect(row(page, one)).to_be_visible()
    expect(row(page, two)).to_have_count(0)


def test_a_new_run_never_moves_a_row_under_the_pointer(shared, page):
    word = new_id()[:8]
    first = shared.start("asker", labels={"w": word}, policy=LONG)
    page.goto(f"{shared.url}/#/?label=w:{word}")
    row(page, first).hover()
    before = row(page, first).bounding_box()
    second = shared.start("asker", labels={"w": word}, policy=LONG)
    expect(page.get_by_role("button", name="1 new run")).to_be_visible()
    assert abs(row(page, first).bounding_box()["x"] - before["x"]) < 1
    expect(row(page, second)).to_have_count(0)
    page.get_by_role("button", name="1 new run").click()
    expect(row(page, second)).to_be_visible()


def test_a_stop_pressed_while_the_server_is_away_says_so_and_works_when_it_is_back(shared, watched):
    page = watched.page
    watched.allow(REFUSED)
    run = shared.start("asker", policy=LONG)
    with Cable(shared.url) as cable:
        open_run(page, cable, run)
        expect(page.get_by_text("in flight: llm ask")).to_be_visible()
        cable.pull_out()
        button(page, "Stop").click()
        expect(page.get_by_text(re.compile("^Not sent: the server cannot be reached. Press again"))).to_be_visible()
        expect(page.locator("#connection")).to_contain_text(re.compile(r"offline since \d\d:\d\d:\d\d"))
        cable.plug_in()
        expect(page.locator("#connection")).to_have_text("live")
        button(page, "Stop").click()
        expect(button(page, "Stop now")).to_be_visible()
        button(page, "Stop now").click()
        expect(chip(page)).to_have_attribute("data-status", "stopped")
        page.goto("about:blank")


def test_pages_that_follow_more_than_the_browser_has_connections_for_stop_their_runs(shared, browser):
    with browser.new_context() as context:
        runs = [shared.start("asker", input={"gate": f"windows-{number}"}, policy=LONG) for number in range(5)]
        pages = [context.new_page() for _ in runs]
        for page, run in zip(pages, runs, strict=True):
            open_run(page, shared, run)  # two streams each; a browser has six connections
        for page, run in zip(pages, runs, strict=True):
            button(page, "Stop").click()
            expect(chip(page)).to_have_attribute("data-status", "stopping")
            assert shared.ask("GET", f"/runs/{run}")["status"] == "stopping"
        for number in range(5):
            shared.open_gate(f"windows-{number}")
        for page in pages:
            expect(chip(page)).to_have_attribute("data-status", "stopped")


def test_a_list_that_cannot_be_loaded_says_so_and_leaves_no_error_uncaught(shared, watched):
    page = watched.page
    watched.allow("Failed to load resource")
    page.route("**/runs?*", lambda route: route.abort())
    page.goto(shared.url)
    expect(page.get_by_text("the server cannot be reached")).to_be_visible()
    page.wait_for_timeout(200)  # an error that is not caught is reported a moment later


def test_the_list_goes_on_after_a_restart_without_a_gap(own, watched):
    page = watched.page
    watched.allow(REFUSED)
    page.goto(own.url)
    expect(page.get_by_text("No runs yet")).to_be_visible()
    expect(page.locator("#connection")).to_have_text("live")
    own.close()
    expect(page.locator("#connection")).to_have_text(re.compile("reconnecting|offline"))
    own.open()
    run = own.start("asker", policy=LONG)
    expect(row(page, run).locator(".chip")).to_have_attribute("data-status", "running")
    expect(page.locator("#connection")).to_have_text("live")


def test_hostile_output_is_shown_as_text(shared, page):
    run = shared.start("hostile")
    open_run(page, shared, run)
    output = page.locator(".output")
    expect(output).to_contain_text("<script>window.pwned = true</script><img src=x onerror=")
    expect(output).to_contain_text("bell ␇ escape ␛[31m null ␀ right-to-left ⟨202E⟩gnp.exe⟨202C⟩")
    expect(page.get_by_text("characters before this are not shown")).to_be_visible()
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_text('<b>step</b> {"html":"<script>window.pwned = true</script>"}')).to_be_visible()
    assert page.evaluate("window.pwned") is None
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    assert page.evaluate("document.querySelectorAll('script').length") == 1


def test_hostile_names_labels_and_reasons_are_text_too(shared, page):
    word = new_id()[:8]
    bad = "<img src=x onerror='window.pwned = true'>"
    run = shared.start("asker", labels={"w": word, "bad": bad}, owner=bad)
    shared.ask("POST", f"/runs/{run}/stop?wait=30", json={"reason": bad, "mode": "immediate"})
    page.goto(f"{shared.url}/#/?label=w:{word}")
    expect(row(page, run)).to_contain_text(f"bad:{bad}")
    for address in (f"#/runs/{run}", "#/audit"):
        page.goto(f"{shared.url}/{address}")
        expect(page.get_by_text(bad).first).to_be_visible()
    assert page.evaluate("window.pwned") is None


def test_the_key_is_asked_for_and_kept_for_this_tab_only(tmp_path, watched):
    page = watched.page
    watched.allow("401")
    with serving(tmp_path, STOPPABLE_API_KEY="a key of its own") as server:
        run = server.start("asker", policy=LONG)
        asked, ended = [], []
        page.on("request", lambda request: asked.append(request.url))
        for event in ("requestfinished", "requestfailed"):
            page.on(event, lambda request: ended.append(request.url))

        def answered():
            """Wait until the server has refused all that the page asked: each refusal asks for a key."""
            wait_until(lambda: page.wait_for_timeout(100) or len(asked) == len(ended), 60)

        page.goto(f"{server.url}/#/runs/{run}")
        expect(page.get_by_label("Key")).to_be_visible()
        answered()
        page.get_by_label("Key").fill("a wrong key")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_text("That key was not accepted.")).to_be_visible()
        answered()
        page.get_by_label("Key").fill("a key of its own")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_text("in flight: llm ask")).to_be_visible()
        button(page, "Stop").click()
        expect(button(page, "Stop now")).to_be_visible()
        page.reload()
        expect(button(page, "Stop now")).to_be_visible()  # the tab has it
        other = page.context.new_page()
        other.goto(server.url)
        expect(other.get_by_label("Key")).to_be_visible()  # another tab has not
        other.close()
        assert "a key of its own" not in json.dumps(page.context.storage_state())
        page.goto("about:blank")


def test_a_late_refusal_of_the_key_before_asks_for_no_other(tmp_path, watched):
    page = watched.page
    watched.allow("401")
    with serving(tmp_path, STOPPABLE_API_KEY="a key of its own") as server:
        held = []

        def hold(route):
            held.append(route)

        page.route("**/holds", hold, times=1)
        page.goto(f"{server.url}/#/holds")
        page.get_by_label("Key").fill("a key of its own")
        wait_until(lambda: page.wait_for_timeout(10) or held, 60)
        page.get_by_role("button", name="Open").click()
        heading = page.get_by_role("heading", name="Holds")
        expect(heading).to_be_visible()
        with page.expect_response(lambda answer: answer.status == 401 and answer.url.endswith("/holds")):
            held.pop().continue_()  # it was sent without a key
        page.evaluate("new Promise((done) => setTimeout(done, 200))")  # in which the page would have asked
        expect(page.get_by_label("Key")).to_have_count(0)
        expect(heading).to_be_visible()
        page.goto("about:blank")


def test_a_run_that_is_not_there_is_said_not_to_be_there(shared, watched):
    watched.allow("404")
    watched.page.goto(f"{shared.url}/#/runs/nobody-knows-it")
    expect(watched.page.get_by_text("There is no such run")).to_be_visible()


def test_the_list_shows_what_its_address_says_however_it_got_there(shared, page):
    word = new_id()[:8]
    failed = shared.start("fails", labels={"w": word})
    live = shared.start("asker", labels={"w": word}, policy=LONG)
    page.goto(f"{shared.url}/#/?label=w:{word}")
    page.locator(".chips [data-status='failed']").click()
    expect(row(page, live)).to_have_count(0)
    row(page, failed).get_by_role("link").click()
    page.locator(".crumbs").get_by_role("link", name="Runs").click()  # back to the list as it was
    expect(row(page, failed)).to_be_visible()
    expect(row(page, live)).to_have_count(0)
    page.evaluate(f"location.hash = '#/?label=w:{word}&status=running'")  # as if it was pasted
    expect(row(page, live)).to_be_visible()
    expect(row(page, failed)).to_have_count(0)
    page.get_by_role("navigation").get_by_role("link", name="Runs").click()
    expect(page.locator(".chips [aria-pressed='true']")).to_have_count(0)
    expect(page.get_by_label("Label")).to_have_value("")


def test_an_address_that_is_malformed_is_not_found(shared, page):
    for address in ("#/%E0%A4%A", "#/runs/%E0%A4%A"):
        page.goto(f"{shared.url}/{address}")
        expect(page.get_by_text("There is no such page")).to_be_visible()


def test_what_was_streamed_stays_beside_the_result(shared, page):
    run = shared.start("streams")
    open_run(page, shared, run)
    expect(chip(page)).to_have_attribute("data-status", "completed")
    expect(page.get_by_role("region", name="Output")).to_contain_text("line 1\nline 2\n")
    expect(page.get_by_role("region", name="Result")).to_have_text("all done")


def test_all_of_a_long_output_can_be_downloaded(shared, page):
    run = shared.start("hostile", input={"length": 3_000_000})
    open_run(page, shared, run)
    expect(page.get_by_text("characters before this are not shown")).to_be_visible()
    expect(page.locator(".output")).to_contain_text("gnp.exe")  # its end is in the log
    with page.expect_download() as download:
        page.get_by_role("button", name="Download all of it").click()
    text = download.value.path().read_text()
    assert text.startswith("x" * 3_000_000)
    assert text.rstrip().endswith("\u202c")
    shared.ask("POST", f"/runs/{run}/stop?wait=30", json={"mode": "immediate"})


def test_the_focus_of_a_row_is_seen_on_every_side(shared, page):
    run = shared.start("asker", policy=LONG)
    page.goto(f"{shared.url}/#/?text={run}")
    expect(row(page, run)).to_be_visible()
    page.keyboard.press("Tab")
    while not row(page, run).locator("a").evaluate("(link) => link === document.activeElement"):
        page.keyboard.press("Tab")
    ring = row(page, run).locator("a").evaluate("(link) => getComputedStyle(link, '::after').outlineStyle")
    assert ring == "solid"
    assert (
        row(page, run).locator("a").evaluate("(link) => parseFloat(getComputedStyle(link, '::after').outlineOffset)")
        < 0
    )

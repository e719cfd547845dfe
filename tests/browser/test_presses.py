"""A press does what its label says and never more, wherever a button is and however it is pressed."""

import json
import re

import pytest
from playwright.sync_api import expect

from .cable import Cable
from .test_pages import REFUSED, row
from .test_stop import LONG, button, open_run

WIDTHS = [360, 768, 1280, 1440]


class Sent:
    """The modes that a page has sent, in order."""

    def __init__(self, page):
        self.modes = []
        page.on("request", self._note)

    def _note(self, request):
        if request.method == "POST" and request.url.partition("?")[0].endswith("/stop"):
            self.modes.append(json.loads(request.post_data)["mode"])


@pytest.fixture
def sent(page):
    return Sent(page)


@pytest.fixture
def tidy(shared):
    """A run that cleans up until its gate opens, so that every mode could be sent to it."""

    def start(gate):
        return shared.start("tidy", input={"gate": gate}, policy=LONG)

    return start


def show(page, server, run, place):
    """Open the list or the page of a run, and return what its button is in."""
    if place == "run":
        open_run(page, server, run)
        scope = page.locator(".runhead")
    else:
        page.goto(f"{server.url}/#/?text={run}")
        scope = row(page, run)
    expect(button(scope, "Stop")).to_be_enabled()
    return scope


def stop_the_clock(page):
    """Let the clock of a page, which was installed before, go on only where a test says.

    It is put forward by less than the ten seconds after which a page gives a request up.
    """
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 8)


def middle(locator):
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("place", ["run", "list"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_double_click_on_stop_is_one_stop(shared, page, sent, tidy, place, width):
    page.set_viewport_size({"width": width, "height": 800})
    scope = show(page, shared, tidy(f"double-{place}-{width}"), place)
    button(scope, "Stop").dblclick()
    expect(button(scope, "Stopping…")).to_be_disabled()
    expect(button(scope, "Stop now")).to_be_visible()
    assert sent.modes == ["graceful"]


@pytest.mark.parametrize("place", ["run", "list"])
@pytest.mark.parametrize("width", [360, 1280])
def test_impatient_clicks_at_one_spot_never_escalate(shared, page, sent, tidy, place, width):
    page.clock.install()  # a click that comes late, on a busy machine, would be meant
    page.set_viewport_size({"width": width, "height": 800})
    scope = show(page, shared, tidy(f"spot-{place}-{width}"), place)
    stop_the_clock(page)
    spot = middle(button(scope, "Stop"))
    for pause in (150, 1300, 700, 150, 1300):
        page.mouse.click(*spot)
        page.clock.run_for(pause)
    expect(button(scope, "Stop now")).to_be_enabled()
    assert sent.modes == ["graceful"]


@pytest.mark.parametrize("place", ["run", "list"])
@pytest.mark.parametrize("width", [360, 1280])
def test_impatient_clicks_on_stop_now_never_kill(shared, page, sent, tidy, place, width):
    page.set_viewport_size({"width": width, "height": 800})
    scope = show(page, shared, tidy(f"now-{place}-{width}"), place)
    button(scope, "Stop").click()
    expect(scope.locator(".chip")).to_have_attribute("data-status", "stopping")
    if place == "run":  # what the server tells moves the button
        expect(scope.get_by_role("timer")).to_have_text(re.compile("^Forced in "))
    expect(button(scope, "Stop now")).to_be_enabled()
    spot = middle(button(scope, "Stop now"))
    for pause in (150, 1300, 300, 700, 150, 1300):
        page.mouse.click(*spot)
        page.wait_for_timeout(pause)
    assert sent.modes == ["graceful", "immediate"]


def until_it_appears(page, locator):
    """Let the page's clock run, which stands still, until something is there; return how long that took."""
    for milliseconds in range(0, 5000, 10):
        if locator.count():
            return milliseconds
        page.clock.run_for(10)
    raise AssertionError("it does not appear")


@pytest.mark.parametrize("place", ["run", "list"])
def test_a_harder_control_counts_a_press_only_once_it_has_been_in_sight(shared, page, sent, tidy, place):
    page.clock.install()
    scope = show(page, shared, tidy(f"sight-{place}"), place)
    stop_the_clock(page)
    for name, modes in (("Stop now", ["graceful"]), ("Kill", ["graceful", "immediate"])):
        press = button(scope, "Stop") if name == "Stop now" else button(scope, "Stop now")
        press.focus()
        page.keyboard.press("Enter")
        harder = button(scope, name)
        assert until_it_appears(page, harder) >= 1000
        page.mouse.dblclick(*middle(harder))  # was meant for what was there before
        page.clock.run_for(280)
        harder.focus()
        page.keyboard.press("Enter")
        expect(harder).to_be_disabled()
        assert page.get_by_text("Kill without clean-up?").is_hidden()
        assert sent.modes == modes
        page.clock.run_for(20)
        expect(harder).to_be_enabled()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Kill without clean-up?")).to_be_visible()
    assert sent.modes == ["graceful", "immediate"]


@pytest.mark.parametrize("place", ["run", "list"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_question_before_a_kill_is_whole_and_inside_the_window(shared, page, sent, tidy, place, width):
    page.set_viewport_size({"width": width, "height": 800})
    scope = show(page, shared, tidy(f"whole-{place}-{width}"), place)
    for name in ("Stop", "Stop now", "Kill"):
        button(scope, name).click()
    question = page.get_by_text("Kill without clean-up?")
    kill = question.locator("xpath=..").get_by_role("button", name="Kill", exact=True)
    for part in (question, kill, button(page, "Keep waiting")):
        box = part.bounding_box()
        assert box["width"] > 40
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= 800
        on_top = part.evaluate(
            "(part) => {const {x, y, width, height} = part.getBoundingClientRect();"
            " const root = part.getRootNode(), top = root.elementFromPoint(x + width / 2, y + height / 2);"
            " return top === part || part.contains(top)}"
        )
        assert on_top
    expect(button(page, "Keep waiting")).to_be_focused()
    page.keyboard.press("Escape")
    expect(question).to_be_hidden()
    assert sent.modes == ["graceful", "immediate"]
    button(scope, "Kill").click()
    page.wait_for_timeout(700)  # a person reads it first
    kill.click()
    expect(button(scope, "Killing…")).to_be_disabled()
    assert sent.modes == ["graceful", "immediate", "kill"]


def test_escape_held_or_pressed_again_is_one_stop(shared, page, sent, tidy):
    show(page, shared, tidy("escape"), "run")
    for _ in range(30):
        page.keyboard.down("Escape")  # held: the browser repeats it
    page.keyboard.up("Escape")
    for _ in range(3):
        page.keyboard.press("Escape")
        page.wait_for_timeout(700)
    expect(button(page, "Stop now")).to_be_visible()
    assert sent.modes == ["graceful"]
    assert page.get_by_text("Kill without clean-up?").is_hidden()


@pytest.mark.parametrize("key", ["Enter", "Space"])
@pytest.mark.parametrize("place", ["run", "list"])
def test_a_key_that_is_held_on_stop_is_one_stop(shared, page, sent, tidy, place, key):
    scope = show(page, shared, tidy(f"held-{place}-{key}"), place)
    button(scope, "Stop").focus()
    for _ in range(40):
        page.keyboard.down(key)
        page.wait_for_timeout(40)
    page.keyboard.up(key)
    expect(button(scope, "Stop now")).to_be_visible()
    for _ in range(3):
        page.keyboard.press(key)  # the focus is where it was
        page.wait_for_timeout(500)
    assert sent.modes == ["graceful"]


def test_a_held_enter_goes_from_stop_now_to_no_kill(shared, page, sent, tidy):
    scope = show(page, shared, tidy("held-now"), "run")
    button(scope, "Stop").click()
    expect(button(scope, "Stop now")).to_be_enabled()
    button(scope, "Stop now").focus()
    for _ in range(50):
        page.keyboard.down("Enter")
        page.wait_for_timeout(40)
    page.keyboard.up("Enter")
    assert sent.modes == ["graceful", "immediate"]


@pytest.mark.parametrize("place", ["run", "list"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_press_that_fails_says_so_where_it_was_pressed(shared, watched, place, width):
    page = watched.page
    watched.allow(REFUSED)
    page.set_viewport_size({"width": width, "height": 800})
    run = shared.start("asker", policy=LONG)
    with Cable(shared.url) as cable:
        scope = show(page, cable, run, place)
        cable.pull_out()
        button(scope, "Stop").click()
        words = page.get_by_text(re.compile("^Not sent: the server cannot be reached. Press again"))
        expect(words).to_be_visible()
        box = words.bounding_box()
        assert box["width"] > 60
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        expect(button(scope, "Stop")).to_be_enabled()
        cable.plug_in()
        button(scope, "Stop").click()
        expect(button(scope, "Stopping…")).to_be_disabled()
        expect(words).to_be_hidden()
        page.goto("about:blank")


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "missing_scope", "Refused: you may not stop this run."),
        (404, "not_found", "Refused: the server does not know this run."),
        (409, "conflict", "Refused: the store is read-only."),
    ],
)
def test_a_press_that_is_refused_says_why_and_does_not_ask_for_another(shared, watched, status, code, words):
    page = watched.page
    watched.allow(f"{status}")
    run = shared.start("asker", policy=LONG)
    scope = show(page, shared, run, "list")
    answer = {"error": {"code": code, "message": "the store is read-only"}}
    page.route("**/stop", lambda route: route.fulfill(status=status, json=answer))
    button(scope, "Stop").click()
    expect(page.get_by_text(words, exact=True)).to_be_visible()
    expect(scope.locator(".chip")).to_have_attribute("data-status", "running")

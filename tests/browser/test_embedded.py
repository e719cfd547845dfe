"""The button in somebody else's page, as docs/how-to/ui.md shows it."""

import contextlib
import functools
import http.server
import re
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect

import stoppable
from stoppable.server import Service

from ..waiting import wait_until
from .test_presses import Sent, stop_the_clock

ROOT = Path(__file__).parents[2]
[CHAT] = re.findall(r"^```html\n(.*?)^```", (ROOT / "docs/how-to/ui.md").read_text(), re.MULTILINE | re.DOTALL)


@stoppable.agent
async def research(topic: str) -> str:
    async with stoppable.boundary("llm", "ask"):
        await stoppable.sleep(0.1 if topic == "quick" else 3600)
    return topic


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def page_server(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def agents(origin):
    listening = threading.Event()
    service = Service([research], port=0, allowed_origins=[origin], ready=lambda _: listening.set())
    thread = threading.Thread(target=service.run)
    thread.start()
    listening.wait()
    try:
        yield service.url
    finally:
        service.stop()
        thread.join()


def until(page, condition):
    """Wait for something that the browser tells, such as a request; a page may be told of it later than it shows it."""
    wait_until(lambda: page.wait_for_timeout(20) or condition(), 60)


@pytest.fixture
def chat(tmp_path):
    """The address of the chat page of the docs, on an origin of its own, and that of its agents."""
    with page_server(tmp_path) as origin, agents(origin) as url:
        (tmp_path / "index.html").write_text(CHAT.replace("http://127.0.0.1:8420", url))
        yield origin, url


def test_send_becomes_stop_and_stop_becomes_send_again(chat, browser):
    origin, _ = chat
    page = browser.new_page()
    page.goto(origin)
    page.evaluate(
        "window.told = []; for (const one of ['stopping', 'ended'])"
        " addEventListener(one, (event) => told.push([one, event.detail.status]))"
    )
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("button", name="Send")).to_be_hidden()
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    told = page.evaluate("told")
    assert told[-1] == ["ended", "stopped"]
    assert {name for name, _ in told[:-1]} <= {"stopping"}
    page.close()


def test_each_message_of_a_chat_has_a_button_of_its_own(chat, browser):
    origin, _ = chat
    page = browser.new_page()
    modes = Sent(page).modes
    page.goto(origin)
    page.evaluate("window.ends = []; addEventListener('ended', ({detail}) => ends.push([detail.id, detail.status]))")
    topic, send = page.get_by_role("textbox"), page.get_by_role("button", name="Send")
    for number, words in enumerate(["tides", "quick", "quick", "tides", "tides"], 1):
        topic.fill(words)
        send.click()
        if words == "tides":
            expect(page.get_by_text("in flight: llm ask")).to_be_visible()
            expect(page.get_by_role("button")).to_have_count(1)  # Stop, and nothing of the run before
            page.get_by_role("button", name="Stop", exact=True).click()
        expect(send).to_be_visible()
        page.wait_for_function(f"ends.length === {number}")
    ends = page.evaluate("ends")
    assert [status for _, status in ends] == ["stopped", "completed", "completed", "stopped", "stopped"]
    assert len({run for run, _ in ends}) == 5
    assert modes == ["graceful"] * 3
    page.close()


@pytest.mark.parametrize("has_locks", [True, False])
def test_of_more_live_runs_than_the_browser_has_connections_each_is_stopped_and_seen_to_end(chat, browser, has_locks):
    origin, url = chat
    page = browser.new_page()
    if not has_locks:  # as in a page without TLS that is not local
        page.add_init_script("Object.defineProperty(navigator, 'locks', {value: undefined})")
    streams = []
    page.on("request", lambda request: "/events?" in request.url and streams.append(request))
    page.on("requestfailed", lambda request: request in streams and streams.remove(request))
    page.on("requestfinished", lambda request: request in streams and streams.remove(request))
    page.goto(origin)
    page.evaluate("window.ends = []; addEventListener('ended', ({detail}) => ends.push(detail.status))")
    page.evaluate(
        """async (base) => {
            for (let n = 0; n < 9; n++) {
                const runId = crypto.randomUUID();
                const body = JSON.stringify({agent: "research", input: {topic: "tides"}, runId});
                const headers = {"Content-Type": "application/json"};
                await fetch(`${base}/runs`, {method: "POST", body, headers});
                const one = document.createElement("stoppable-button");
                one.setAttribute("base", base);
                one.setAttribute("run-id", runId);
                document.body.append(one);
            }
        }""",
        url,
    )
    expect(page.get_by_text("in flight: llm ask")).to_have_count(4)
    until(page, lambda: len(streams) == 4)  # the browser may tell later of those that each had before
    for _ in range(9):
        page.get_by_role("button", name="Stop", exact=True).last.click()
    page.wait_for_function("ends.length === 9")
    assert page.evaluate("ends") == ["stopped"] * 9
    expect(page.get_by_role("button", name="Stopped")).to_have_count(9)
    until(page, lambda: not streams)
    page.close()


def test_an_answer_about_the_run_before_changes_nothing(chat, browser):
    origin, _ = chat
    page = browser.new_page()
    held = []

    def hold(route):
        held.append(route)

    page.route(re.compile(r"/stop(\?|$)"), hold)
    page.goto(origin)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text("Sending the stop…")).to_be_visible()
    page.evaluate("""() => {
        const stop = document.querySelector("stoppable-button");
        stop.setAttribute("run-id", "another");
        fetch(`${stop.getAttribute("base")}/runs`, {method: "POST", headers: {"Content-Type": "application/json"},
            body: JSON.stringify({agent: "research", input: {topic: "tides"}, runId: "another"})});
    }""")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
    until(page, lambda: held)
    with page.expect_response(re.compile(r"/stop(\?|$)")):
        held.pop().continue_()
    expect(page.get_by_text("in flight: llm ask")).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
    page.close()


def test_a_run_is_stopped_before_the_server_has_heard_of_it(chat, browser):
    origin, url = chat
    page = browser.new_page()
    page.goto(origin)
    asked = []
    page.on("request", lambda request: request.url.endswith("/runs/not-yet") and asked.append(request))
    with page.expect_response(lambda answer: answer.status == 404):
        page.evaluate("""() => {
            const made = document.createElement("stoppable-button");
            made.setAttribute("base", document.querySelector("stoppable-button").getAttribute("base"));
            made.setAttribute("run-id", "not-yet");
            document.body.append(made);
        }""")
    until(page, lambda: len(asked) >= 2)  # who asks again has heard that nobody knows the run
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text("Stopping… as soon as it starts.")).to_be_visible()
    page.evaluate(f"""fetch("{url}/runs", {{method: "POST", headers: {{"Content-Type": "application/json"}},
        body: JSON.stringify({{agent: "research", input: {{topic: "x"}}, runId: "not-yet"}})}})""")
    expect(page.get_by_role("button", name="Stopped")).to_be_disabled()
    page.close()


def test_a_page_that_was_not_named_cannot_stop_anything(tmp_path, browser):
    with page_server(tmp_path) as origin, agents("https://another.example") as url:
        (tmp_path / "index.html").write_text(CHAT.replace("http://127.0.0.1:8420", url))
        page = browser.new_page()
        page.goto(origin)
        assert page.evaluate(f"fetch('{url}/stops', {{method: 'POST', body: '{{}}'}}).then(() => 1, () => 0)") == 0
        page.close()


def test_a_button_that_was_moved_counts_no_press_of_a_harder_control_at_first(chat, browser):
    origin, url = chat
    page = browser.new_page()
    modes = Sent(page).modes
    page.clock.install()
    page.goto(origin)
    page.evaluate("""() => {
        const one = document.createElement("stoppable-button");
        one.setAttribute("base", document.querySelector("stoppable-button").getAttribute("base"));
        one.run = {id: "of-another-page", status: "stopping", mode: "graceful", inFlight: [], ladder: [],
            left: [], silent: [], stopRequestedAt: null, endedAt: null, actor: null, late: null, blind: false,
            error: null};
        document.body.append(one);
    }""")
    stop_the_clock(page)
    page.clock.run_for(2000)
    harder = page.get_by_role("button", name="Stop now")
    expect(harder).to_be_enabled()
    page.evaluate("document.body.prepend(document.querySelectorAll('stoppable-button')[1])")
    expect(harder).to_be_disabled()
    harder.focus()
    page.keyboard.press("Enter")
    page.clock.run_for(299)
    page.keyboard.press("Enter")
    expect(harder).to_be_disabled()
    assert modes == []
    page.clock.run_for(1)
    expect(harder).to_be_enabled()
    with page.expect_request(f"{url}/runs/of-another-page/stop"):
        page.keyboard.press("Enter")
    assert modes == ["immediate"]
    page.close()

"""The npm package in a React app, in a browser, against a real server: with React 18 and 19, strict or not."""

import asyncio
import json
import threading

import httpx
import pytest
from fastapi import Request
from playwright.sync_api import expect

import stoppable
from stoppable._core.values import new_id
from stoppable.server import Principal, Service
from stoppable.server.responses import Problem

from ..served import DEADLINE
from ..waiting import wait_until
from .npm_package import VERSIONS, app_beside, bundle, call, is_slow, needs_npm, needs_react, pack, write_docs
from .test_embedded import agents, page_server
from .test_presses import Sent
from .test_stop import LONG, button

pytestmark = [needs_npm, needs_react, is_slow]
MODES = ("production", "strict")  # in strict mode, React mounts twice
PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><main>{html}</main>{script}
<script type="module" src="{name}.js"></script>"""
NO_KEY = "this page has no key for the server."
READ_ONLY, STOP_ONLY = "reader", "stopper"
asking, open_gates = set(), set()


@stoppable.agent
async def talk(gate: str) -> str:
    """Make one model call, which lasts until the test opens its gate."""
    async with stoppable.boundary("llm", "ask"):
        asking.add(gate)
        while gate not in open_gates:
            await asyncio.sleep(0.01)
    stoppable.check()
    return "all about it"


async def who(request: Request) -> Principal:
    key = request.headers.get("authorization", "").removeprefix("Bearer ")
    if key not in {"ann", "bob", READ_ONLY, STOP_ONLY}:
        raise Problem(401, "unauthenticated", "send a key that is known")
    if key in {READ_ONLY, STOP_ONLY}:
        return Principal(owner="ann", actor=key, scopes="read" if key == READ_ONLY else "stop")
    return Principal(owner=key, actor=key)


class Chat:
    """The page of an app, the runs of its server, and what connections the page has."""

    def __init__(self, page, origin, url, strict):
        self.page, self.url = page, url
        self.sent = Sent(page)
        self.errors, self.streams, self.refused, self.asked = [], [], [], []
        self._forgiven = set()
        self._origin = origin
        self._strict = strict
        self._runs = []
        self._http = httpx.Client(base_url=url, headers={"Authorization": "Bearer ann"}, timeout=DEADLINE)
        page.on("console", lambda message: message.type in {"error", "warning"} and self._note(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: "/events?" in request.url and self.streams.append(request))
        page.on("request", lambda request: request.method == "GET" and self.asked.append(request.url))
        page.on("requestfinished", self._end)
        page.on("requestfailed", self._end)
        page.on("response", lambda answer: answer.status >= 400 and self.refused.append(answer.status))

    def _note(self, text):
        if not any(f"status of {status}" in text for status in self._forgiven):
            self.errors.append(text)

    def _end(self, request):
        if request in self.streams:
            self.streams.remove(request)

    def scene(self, *messages, key="ann", **more):
        shown = [{"kind": "button", **message} for message in messages]
        return {"base": self.url, "key": key, "strict": self._strict, "messages": shown, **more}

    def open(self):
        self.page.goto(self._origin)
        self.page.wait_for_function("!!window.show")

    def show(self, *messages, **more):
        self.page.evaluate("scene => show(scene)", self.scene(*messages, **more))

    def message(self, number):
        return self.page.locator(f"#message-{number}")

    def told(self):
        return self.page.evaluate("told")

    def start(self):
        """Start a run, and return its id once it is in its call."""
        run = new_id()
        self.begin(run)
        wait_until(lambda: run in asking)
        return run

    def begin(self, run):
        started = {"agent": "talk", "input": {"gate": run}, "runId": run, "policy": LONG}
        assert self._http.post("/runs", json=started).is_success
        self._runs.append(run)

    def status(self, run):
        return self._http.get(f"/runs/{run}").json()["status"]

    def let_end(self, run):
        """Open the gate of a run once the server has its stop: otherwise it would be complete before that comes."""
        self.until(lambda: self.status(run) == "stopping")
        open_gates.add(run)

    def until(self, condition):
        """Wait for something that the page does; the page goes on meanwhile."""
        wait_until(lambda: self.page.evaluate("1") and condition())

    def forgive(self, status):
        """Say that a status is expected, also from now on: a browser writes about every request that fails."""
        self._forgiven.add(status)
        self.errors = [text for text in self.errors if f"status of {status}" not in text]

    def close(self):
        open_gates.update(self._runs)
        for run in self._runs:
            wait_until(lambda run=run: self.status(run) in {"completed", "stopped"})
        self._http.close()
        self.page.close()


@pytest.fixture(scope="session")
def apps(tmp_path_factory):
    """The folder that has the app, bundled with each React."""
    folder = tmp_path_factory.mktemp("apps")
    archive = pack(folder / "package")
    for version in VERSIONS:
        with app_beside(archive, version) as app:
            for mode in MODES:
                development = "production" if mode == "production" else "development"
                bundle(app / "client.tsx", folder / f"{version}/{mode}.js", "--format=esm", mode=development)
                (folder / f"{version}/{mode}.html").write_text(PAGE.format(html="", script="", name=mode))
            write_docs(app)
            bundle(app / "docs.tsx", folder / f"{version}/docs.js", "--format=esm")
            bundle(app / "server.tsx", folder / f"{version}/server.cjs", "--platform=node", mode="development")
    return folder


@pytest.fixture(scope="session")
def site(apps):
    """The addresses of the pages and of the agents."""
    listening = threading.Event()
    with page_server(apps) as origin:
        service = Service([talk], port=0, principal=who, allowed_origins=[origin], ready=lambda _: listening.set())
        thread = threading.Thread(target=service.run)
        thread.start()
        listening.wait()
        yield origin, service.url
        service.stop()
        thread.join()


@pytest.fixture(params=[f"{version}/{mode}" for version in VERSIONS for mode in MODES])
def chat(request, site, browser):
    origin, url = site
    chat = Chat(browser.new_page(), f"{origin}/{request.param}.html", url, request.param.endswith("strict"))
    chat.open()
    yield chat
    chat.page.goto("about:blank")
    chat.close()
    assert chat.errors == []


def test_stop_stops_the_run_of_its_message_only(chat):
    first, second, third = (chat.start() for _ in range(3))
    chat.show({"id": first}, {"id": second}, {"id": third})
    for number in range(3):
        expect(chat.message(number).get_by_text("in flight: llm ask")).to_be_visible()
    button(chat.message(1), "Stop").click()
    expect(button(chat.message(1), "Stopping…")).to_be_disabled()
    chat.until(lambda: [chat.status(run) for run in (first, second, third)] == ["running", "stopping", "running"])
    chat.until(chat.told)  # that it is stopping: if it ended first, the page might see nothing but the end
    open_gates.update({second, third})
    expect(button(chat.message(1), "Stopped")).to_be_disabled()
    expect(chat.message(2).get_by_role("button")).to_have_count(0)  # it completed
    expect(button(chat.message(0), "Stop")).to_be_enabled()
    assert [chat.status(run) for run in (first, second, third)] == ["running", "stopped", "completed"]
    assert chat.sent.modes == ["graceful"]
    ends = [[run, status] for run, word, status, _ in chat.told() if word == "ended"]
    assert sorted(ends) == sorted([[second, "stopped"], [third, "completed"]])
    assert [run for run, word, *_ in chat.told() if word == "stopping"] == [second]


@pytest.mark.parametrize("kind", ["button", "own", "fed"])
def test_each_live_run_has_one_connection_and_unmounting_closes_it(chat, kind):
    first, second = chat.start(), chat.start()
    chat.show({"id": first, "kind": kind}, {"id": second, "kind": kind})
    for number in range(2):
        expect(chat.message(number).get_by_text("ask")).to_be_visible()
    chat.until(lambda: len(chat.streams) == 2)
    chat.show({"id": first, "kind": kind})
    chat.until(lambda: len(chat.streams) == 1)
    assert first in chat.streams[0].url
    chat.page.evaluate("leave()")
    chat.until(lambda: not chat.streams)
    chat.show({"id": second, "kind": kind})
    expect(chat.message(0).get_by_text("ask")).to_be_visible()
    chat.until(lambda: len(chat.streams) == 1)
    assert [chat.status(run) for run in (first, second)] == ["running", "running"], "leaving stops nothing"


def test_of_more_live_runs_than_the_browser_has_connections_each_is_stopped(chat):
    runs = [chat.start() for _ in range(7)]
    chat.show(*({"id": run, "kind": kind} for run, kind in zip(runs, ["fed", "button"] * 4, strict=False)))
    chat.until(lambda: len(chat.streams) == 4)
    for number in reversed(range(7)):
        button(chat.message(number), "Stop").click()
    for number, run in enumerate(runs):
        chat.let_end(run)
        expect(button(chat.message(number), "Stopped")).to_be_visible()
    chat.until(lambda: not chat.streams)


@pytest.mark.parametrize("kind", ["button", "own", "fed"])
def test_another_run_leaves_nothing_of_the_one_before(chat, kind):
    first, second = chat.start(), chat.start()
    chat.show({"id": first, "kind": kind})
    button(chat.message(0), "Stop").click()
    chat.let_end(first)
    expect(chat.message(0).get_by_text("stopped", exact=kind == "own")).to_be_visible()
    chat.show({"id": second, "kind": kind})
    expect(chat.message(0).get_by_text("ask")).to_be_visible()
    expect(button(chat.message(0), "Stop")).to_be_enabled()
    chat.until(lambda: len(chat.streams) == 1)
    assert second in chat.streams[0].url
    assert chat.status(second) == "running"


def test_without_a_run_there_is_no_button(chat):
    chat.show({"id": None}, {"id": None, "kind": "fed"})
    expect(chat.page.locator("stoppable-button")).to_have_count(0)
    run = chat.start()
    chat.show({"id": run}, {"id": None, "kind": "fed"})
    expect(chat.message(0).get_by_text("in flight: llm ask")).to_be_visible()
    chat.show({"id": None}, {"id": None, "kind": "fed"})
    expect(chat.page.locator("stoppable-button")).to_have_count(0)
    chat.until(lambda: not chat.streams)


def test_the_newest_callback_is_called_once(chat):
    run = chat.start()
    chat.show({"id": run}, word="old")
    expect(chat.message(0).get_by_text("in flight: llm ask")).to_be_visible()
    chat.show({"id": run}, word="new")
    button(chat.message(0), "Stop").click()
    chat.until(chat.told)  # that it is stopping: if it ended first, the page might see nothing but the end
    chat.let_end(run)
    expect(button(chat.message(0), "Stopped")).to_be_visible()
    assert chat.told() == [[run, "stopping", "stopping", "new"], [run, "ended", "stopped", "new"]]
    assert len(chat.sent.modes) == 1


def test_a_control_of_your_own_stops_its_run_and_escalates_only_if_it_says_so(chat):
    run, other = chat.start(), chat.start()
    chat.show({"id": run, "kind": "own"}, {"id": other, "kind": "own"})
    mine = chat.message(0)
    expect(mine.get_by_text("llm:ask")).to_be_visible()
    for _ in range(3):
        button(mine, "Stop").click()
    expect(mine.get_by_text("stopping…")).to_be_visible()
    chat.until(lambda: len(chat.told()) == 3)
    assert {answer for _, _, answer, _ in chat.told()} == {"accepted", "already_stopping"}
    button(mine, "Stop now").click()
    expect(mine.get_by_text("stopped", exact=True)).to_be_visible()
    chat.until(lambda: len(chat.told()) == 4)
    assert chat.told()[-1][2] == "escalated"
    assert chat.sent.modes == ["graceful"] * 3 + ["immediate"]
    expect(chat.message(1).get_by_text("llm:ask")).to_be_visible()
    assert chat.status(other) == "running"


def test_a_run_is_stopped_before_the_server_has_heard_of_it(chat):
    ids = [new_id(), new_id()]
    chat.show({"id": ids[0]}, {"id": ids[1], "kind": "own"})
    # Whoever asks again has heard that nobody knows the run.
    chat.until(lambda: sum(address.endswith(f"/runs/{ids[0]}") for address in chat.asked) >= 2)
    assert 404 in chat.refused
    expect(chat.message(1).get_by_text("404: ")).to_be_visible()
    button(chat.message(0), "Stop").click()
    button(chat.message(1), "Stop").click()
    expect(chat.message(0).get_by_text("Stopping… as soon as it starts.")).to_be_visible()
    expect(chat.message(1).get_by_text("stopping…")).to_be_visible()
    for run in ids:
        chat.begin(run)
    expect(button(chat.message(0), "Stopped")).to_be_visible()
    expect(chat.message(1).get_by_text("stopped", exact=True)).to_be_visible()
    expect(chat.message(1).get_by_text("404: ")).to_have_count(0)
    chat.forgive(404)


@pytest.mark.parametrize(
    ("key", "status", "unseen", "unsent"),
    [
        ("unknown", 401, f"Not followed: {NO_KEY}", f"Refused: {NO_KEY}"),
        (STOP_ONLY, 403, "Not followed: you may not see this run.", None),
        (READ_ONLY, 403, None, "Refused: you may not stop this run."),
        ("bob", 404, None, None),
    ],
)
def test_what_the_server_refuses_is_shown(chat, key, status, unseen, unsent):
    run = chat.start()
    chat.show({"id": run}, {"id": run, "kind": "own"}, key=key)
    element, own = chat.message(0), chat.message(1)
    if unseen:
        expect(element.get_by_text(unseen)).to_be_visible()
    if unseen or key == "bob":
        expect(own.get_by_text(f"{status}: ")).to_be_visible()
    button(element, "Stop").click()
    button(own, "Stop").click()
    if unsent:
        expect(element.get_by_text(unsent)).to_be_visible()
        expect(own.get_by_text(f"{status}: ")).to_be_visible()
        expect(own.get_by_text("stopping…")).to_have_count(0)
        chat.until(lambda: "receipt" in [word for _, word, *_ in chat.told()])  # the words may be of the time before
        assert [answer for _, word, answer, _ in chat.told() if word == "receipt"] == [None]
        assert chat.status(run) == "running"
    chat.forgive(status)


def test_the_key_is_sent_with_the_first_request(chat):
    run = chat.start()
    chat.show(*({"id": run, "kind": kind} for kind in ("button", "own", "fed")))
    for number in range(3):
        expect(chat.message(number).get_by_text("ask")).to_be_visible()
    assert chat.refused == []


def test_attributes_are_those_of_an_element_with_any_react(chat):
    run = chat.start()
    flags = [{}, {"compact": True}, {"readonly": True}, {"hidden": True}, {"compact": False, "hidden": False}]
    chat.show(*({"id": run, **flag} for flag in flags))
    # The last has no stream, and the one that is hidden is there too.
    expect(chat.page.get_by_text("in flight: llm ask").locator("visible=true").first).to_be_visible()
    names = ["class", "compact", "readonly", "hidden"]
    read = "(all, names) => all.map((one) => names.filter((name) => one.hasAttribute(name)))"
    told = chat.page.locator("stoppable-button").evaluate_all(read, names)
    assert told == [["class"], ["class", "compact"], ["class", "readonly"], ["class", "hidden"], ["class"]]
    assert chat.page.locator("stoppable-button.stop").count() == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_a_page_that_a_server_has_rendered_is_taken_over(apps, site, browser, version):
    origin, url = site
    chat = Chat(browser.new_page(), f"{origin}/{version}/rendered.html", url, True)
    run = chat.start()
    scene = chat.scene({"id": run, "readonly": True}, {"id": run}, {"id": run, "kind": "own"}, {"id": None})
    html = call("node", apps / f"{version}/server.cjs", json.dumps(scene), cwd=apps)
    assert html.count("<stoppable-button") == 2
    script = f"<script>window.scene = {json.dumps(scene)}</script>"
    (apps / f"{version}/rendered.html").write_text(PAGE.format(html=html, script=script, name="strict"))
    chat.open()
    expect(chat.message(0).get_by_text("in flight: llm ask")).to_be_visible()
    button(chat.message(1), "Stop").click()
    chat.let_end(run)
    expect(button(chat.message(1), "Stopped")).to_be_visible()
    expect(chat.message(2).get_by_text("stopped", exact=True)).to_be_visible()
    chat.close()
    assert chat.errors == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_chat_of_the_docs_stops_one_message_of_three(apps, browser, version, tmp_path):
    with page_server(tmp_path) as origin, agents(origin) as url:
        (tmp_path / "index.html").write_text(PAGE.format(html="", script="", name="docs"))
        module = (apps / f"{version}/docs.js").read_text()
        assert module.count('"/agents"') == 2
        (tmp_path / "docs.js").write_text(module.replace('"/agents"', json.dumps(url)))
        page = browser.new_page()
        page.goto(origin)
        messages = page.get_by_role("listitem")
        for number, topic in enumerate(["tides", "tides", "quick"]):
            page.get_by_role("textbox").fill(topic)
            button(page, "Send").click()
            expect(messages).to_have_count(number + 1)
            if topic == "tides":
                expect(messages.nth(number).get_by_text("in flight: llm ask")).to_be_visible()
        button(messages.nth(1), "Stop").click()
        expect(messages.nth(1)).to_have_class("stopped")
        expect(messages.nth(2)).to_have_class("completed")
        expect(button(messages.nth(0), "Stop")).to_be_enabled()
        started = {"agent": "research", "input": {"topic": "tides"}, "runId": "mine"}
        assert httpx.post(f"{url}/runs", json=started, timeout=DEADLINE).is_success
        page.goto(f"{origin}?run=mine")
        button(page, "Stop").click()
        expect(page.get_by_text("stopped", exact=True)).to_be_visible()
        page.close()

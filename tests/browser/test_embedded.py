"""The button in somebody else's page, as docs/how-to/ui.md shows it."""

import contextlib
import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect

import stoppable
from stoppable.server import Service

ROOT = Path(__file__).parents[2]
[CHAT] = re.findall(r"^```html\n(.*?)^```", (ROOT / "docs/how-to/ui.md").read_text(), re.MULTILINE | re.DOTALL)


@stoppable.agent
async def research(topic: str) -> str:
    async with stoppable.boundary("llm", "ask"):
        await stoppable.sleep(3600)
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


def test_a_run_is_stopped_before_the_server_has_heard_of_it(chat, browser):
    origin, url = chat
    page = browser.new_page()
    page.goto(origin)
    with page.expect_response(lambda answer: answer.status == 404):
        page.evaluate("""() => {
            const made = document.createElement("stoppable-button");
            made.setAttribute("base", document.querySelector("stoppable-button").getAttribute("base"));
            made.setAttribute("run-id", "not-yet");
            document.body.append(made);
        }""")
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


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_folder_is_ready_for_npm():
    folder = ROOT / "js/stoppable-button"
    done = subprocess.run(
        ["npm", "pack", "--dry-run", "--json"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    [packed] = json.loads(done.stdout[done.stdout.index("[\n") :])
    assert {"stoppable-button.js", "stoppable-button.d.ts", "package.json"} <= {one["path"] for one in packed["files"]}
    (folder / "stoppable-button.js").unlink()

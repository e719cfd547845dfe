"""The page in a real browser, against a real server process."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from stoppable._core.values import new_id

from ..ports import held_port
from ..served import DEADLINE, Server
from ..waiting import wait_until

try:
    from playwright import sync_api
except ImportError:
    collect_ignore_glob = ["test_*.py"]  # `make test-ui` has an environment for them

HERE = Path(__file__).parent
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60_000  # milliseconds: only a defect takes so long
ASKERS = {"asker", "deaf", "tidy"}  # they note that they are inside their call


@pytest.fixture(scope="session")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"NO BROWSER: none of {', '.join(BROWSERS)} is installed")
    sync_api.expect.set_options(timeout=PATIENCE)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Served:
    """A server process that can be taken away and brought back at the same address."""

    def __init__(self, folder, port, **environment):
        self.gates = folder / "gates"
        self.gates.mkdir()
        self._port = port
        self._store = f"sqlite:///{folder}/runs.db"
        self._environment = {"UI_GATES": str(self.gates), **environment}
        self._server = None
        self.http = httpx.Client(timeout=3 * DEADLINE, verify=False)  # certificates load slowly
        self.key = environment.get("STOPPABLE_API_KEY")
        self.url = f"http://127.0.0.1:{self._port}"

    def open(self):
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("STOPPABLE", "OPENAI"))}
        command = [sys.executable, "-m", "stoppable", "serve", "ui_agents", "--demo"]
        command += ["--port", str(self._port), "--store", self._store]
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env={**variables, **self._environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._server = Server(process)
        assert self._server.url() == self.url

    def close(self):
        """Take it away at once, as a crash does."""
        if self._server is not None:
            self._server.process.kill()
            self._server.process.wait(DEADLINE)
            self._server.close()
            self._server = None

    def open_gate(self, name):
        (self.gates / name).touch()

    def until_it_asks(self, run_id):
        """Wait until a run is inside its call, such as one of ``asker`` or ``deaf``."""
        wait_until((self.gates / f"asks-{run_id}").exists, 120)

    def until_it_is(self, run_id, *statuses):
        """Wait until the record of a run has one of some statuses."""
        wait_until(lambda: self.ask("GET", f"/runs/{run_id}")["status"] in statuses, 60)

    def start(self, agent, run_id=None, **more):
        """Start a run and return its id; a stop before it is inside its call would end it at once."""
        run_id = run_id or f"{agent}-{new_id()[:6]}"
        self.ask("POST", "/runs", json={"agent": agent, "runId": run_id, **more})
        if agent in ASKERS:
            self.until_it_asks(run_id)
        return run_id

    def ask(self, method, path, **options):
        """Make a request beside the page, and return the JSON of its answer."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        answer = self.http.request(method, self.url + path, headers=headers, **options)
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A server that most tests share, each with runs of its own."""
    with serving(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture
def own(tmp_path):
    """A server for one test, which may take it away."""
    with serving(tmp_path) as server:
        yield server


@contextlib.contextmanager
def serving(folder, **environment):
    with held_port() as port:
        server = Served(folder, port, **environment)
        try:
            server.open()
            yield server
        finally:
            server.http.close()
            server.close()


class Watched:
    """A page of which everything is noted that must not happen."""

    def __init__(self, page):
        self.page = page
        self.wrong = []
        self.origins = set()
        self._allowed = []
        page.on("console", lambda message: message.type in {"error", "warning"} and self._note(message.text))
        page.on("pageerror", lambda error: self._note(str(error)))
        page.on("request", lambda request: self._note_origin(urlsplit(request.url)))

    def allow(self, pattern):
        """Say that a message is expected: a browser writes about every request that fails."""
        self._allowed.append(pattern)

    def _note_origin(self, url):
        if url.scheme != "blob":  # made by the page itself
            self.origins.add(f"{url.scheme}://{url.netloc}")

    def _note(self, text):
        self.wrong.append(text)

    def check(self):
        left = [text for text in self.wrong if not any(re.search(pattern, text) for pattern in self._allowed)]
        assert not left, left
        assert len(self.origins) <= 1, f"requests left the origin: {self.origins}"


@pytest.fixture
def watched(browser):
    """A page of a context of its own; no error and no foreign request may be left when the test ends."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE)
    watched = Watched(context.new_page())
    yield watched
    context.close()
    watched.check()


@pytest.fixture
def page(watched):
    return watched.page

"""The Stop button in the page of `adk web`, in a real browser: it ends the run."""

import shutil

import httpx
import pytest

from .processes import process
from .test_commands import patient
from .world import DEADLINE, names

sync_api = pytest.importorskip("playwright.sync_api")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PATIENCE = 60_000  # milliseconds


def ended(url):
    """Return the one run that is over, once it is."""
    with httpx.Client(base_url=url, timeout=DEADLINE) as http:
        run_id = http.get("/stoppable/runs").json()["runs"][0]["id"]
        with http.stream("GET", f"/stoppable/runs/{run_id}/events", timeout=DEADLINE) as events:
            for _ in events.iter_lines():
                pass
        return http.get(f"/stoppable/runs/{run_id}").json()


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
@pytest.mark.skipif(names.WORKFLOW is None, reason="the page of google-adk 1.x has no Stop button")
@pytest.mark.timeout(300)
def test_the_stop_button_of_adk_web_ends_the_run(warm, tmp_path):
    arguments = ["-m", "google.adk.cli", "web", "--port", "0", "--session_service_uri", "memory://", patient(tmp_path)]
    with process(*arguments, cwd=tmp_path) as made, sync_api.sync_playwright() as playwright:
        url = made.hear(r"Uvicorn running on (http://\S+)")[1]
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{url}/dev-ui/?app=writer")
        box = page.get_by_placeholder("Type a message...")
        box.fill("the sea")
        box.press("Enter")
        stop = page.locator("button:has(mat-icon:text-is('stop'))")
        stop.dispatch_event("click")  # a dialog of the page may lie above it
        record = ended(url)
        browser.close()
    assert record["status"] == "stopped", record
    assert record["outcome"]["reason"]["kind"] == "disconnect", record

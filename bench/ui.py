"""The web UI in a headless Chromium: long tasks and memory with many runs and events, and how busy a page is.

`make bench-ui` calls it; it needs chromium.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

from machine import facts
from stoppable import sync

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results/ui.md"
RUNS = 10_000
RATE = 200
SECONDS = 20
EVENTS = 20_000
LOG = 100_000
LIVE = 1000
CHILDREN = 200
CALLS = 40
HOURS = 3
WATCHED = 10  # seconds for which a page is measured
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
OBSERVE = """
window.long = [];
new PerformanceObserver((list) => long.push(...list.getEntries().map((one) => one.duration)))
  .observe({type: "longtask", buffered: true});
"""


def fill(store):
    """Write runs that are over."""
    with sync.Supervisor(store) as supervisor:
        for start in range(0, RUNS, 200):
            handles = [supervisor.start(int, name=f"agent-{n % 7}") for n in range(start, min(start + 200, RUNS))]
            for handle in handles:
                handle.outcome()


def serving(store, folder):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "UI_GATES": str(folder)}
    command = [sys.executable, "-m", "stoppable", "serve", "ui_agents", "--port", str(port), "--store", store]
    process = subprocess.Popen(command, cwd=ROOT / "tests/browser", env=environment, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    while True:
        try:
            httpx.get(f"{url}/healthz")
            return process, url
        except httpx.TransportError:
            assert process.poll() is None, "the server does not start"
            time.sleep(0.05)


def start(url, agent, **given):
    answer = httpx.post(f"{url}/runs", json={"agent": agent, "input": given}, timeout=30)
    assert answer.is_success, answer.text
    return answer.json()["id"]


def wait_for_end(page, url, run):
    while httpx.get(f"{url}/runs/{run}", timeout=30).json()["endedAt"] is None:
        page.wait_for_timeout(250)


def heap(page):
    page.evaluate("gc()")
    return page.evaluate("performance.memory.usedJSHeapSize") / 1e6


def long_tasks(page):
    found = page.evaluate("const found = window.long; window.long = []; found")
    return f"{len(found)}, longest {max(found, default=0):.0f} ms"


def scrolled(page, url):
    page.goto(url)
    page.locator(".row").first.wait_for()
    shown = time.perf_counter()
    page.evaluate("window.long = []")
    while page.evaluate("document.querySelector('[role=table]').ariaRowCount") != str(RUNS + 1):
        page.evaluate("document.querySelector('.list > .scroller').scrollTop += 3000")
        page.wait_for_timeout(50)
        assert time.perf_counter() - shown < 300, "the list does not end"
    rows = page.locator(".row").count()
    return [("scrolling 10 000 runs to the end", long_tasks(page)), ("rows in the document then", str(rows))]


def followed(page, url):
    run = start(url, "steady", events=RATE * SECONDS, rate=RATE)
    page.goto(f"{url}/#/runs/{run}")
    page.locator(".runhead").wait_for()
    page.evaluate("window.long = []")
    wait_for_end(page, url, run)
    return [(f"following {RATE} events a second for {SECONDS} s", long_tasks(page))]


def remembered(page, url):
    run = start(url, "steady", events=EVENTS, rate=1000)
    page.goto(f"{url}/#/runs/{run}")
    page.locator(".runhead").wait_for()
    page.get_by_role("tab", name="Events").click()
    sizes = []
    while httpx.get(f"{url}/runs/{run}", timeout=30).json()["endedAt"] is None:
        sizes.append(heap(page))
        page.wait_for_timeout(1000)
    sizes.append(heap(page))
    half = sizes[len(sizes) // 2]
    return [
        (
            f"heap over {EVENTS} events: a quarter, half, all",
            f"{sizes[len(sizes) // 4]:.1f}, {half:.1f}, {sizes[-1]:.1f} MB",
        )
    ]


@contextlib.contextmanager
def agents():
    """Serve agents whose logs are kept whole, and yield the address."""
    command = [sys.executable, str(ROOT / "bench/ui_under_test.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def read_to_the_end(page, url, run):
    """Open a run and its log; return when it was shown, and when all of it was there."""
    page.goto("about:blank")
    begun = time.perf_counter()
    page.goto(f"{url}/#/runs/{run}")
    page.locator(".runhead").wait_for()
    shown = time.perf_counter() - begun
    page.get_by_role("tab", name="Events").click()
    last = "document.querySelector('.events .row:last-child .type')?.textContent"
    while page.evaluate(last) != "done":  # the page's policy forbids wait_for_function
        page.wait_for_timeout(100)
        assert time.perf_counter() - begun < 300, "the log does not end"
    return shown, time.perf_counter() - begun


def opened(page, url):
    """Open a run that has a long log."""
    run = start(url, "talker", events=LOG, each_second=1e9)
    wait_for_end(page, url, run)
    shown, whole = read_to_the_end(page, url, run)
    return [
        (f"opening a run with {LOG:,} events: shown, and its log read to the end", f"{shown:.1f} s, {whole:.1f} s"),
        ("long tasks meanwhile", long_tasks(page)),
    ]


class Meter:
    """How busy a page is: what Chromium counts as its scripting and as all its work, and its elements."""

    def __init__(self, page):
        self._page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")

    def _read(self):
        found = {one["name"]: one["value"] for one in self._session.send("Performance.getMetrics")["metrics"]}
        return time.perf_counter(), found["ScriptDuration"], found["TaskDuration"]

    def row(self, name, act):
        """Measure the page during an act."""
        self._page.evaluate("window.long = []")
        began, scripting, work = self._read()
        act()
        ended, scripting_then, work_then = self._read()
        each = 1000 / (ended - began)
        elements = self._page.evaluate("document.querySelectorAll('*').length")
        busy = [f"{(scripting_then - scripting) * each:.0f} ms", f"{(work_then - work) * each:.0f} ms"]
        return [name, *busy, long_tasks(self._page), f"{elements:,}"]


def busy(page, url):
    """Show what is large, and measure how busy the page is with it."""
    meter = Meter(page)

    def watch():
        page.wait_for_timeout(WATCHED * 1000)

    def change():
        for _ in range(WATCHED * 10):
            start(url, "talker", events=2, each_second=1000)
            page.wait_for_timeout(100)

    def show(run):
        page.goto(f"{url}/#/runs/{run}")
        page.locator(".lanes .lanename").first.wait_for()
        page.wait_for_timeout(1000)

    def stop():
        httpx.post(f"{url}/runs/{crowd}/stop", json={}, timeout=30)
        page.locator(".runhead .chip[data-status=stopped]").wait_for()

    def zoom():
        page.locator(".lanesbox").hover()
        page.keyboard.down("Control")
        for number in range(20):
            page.mouse.wheel(0, -200 if number < 10 else 200)
            page.wait_for_timeout(100)
        page.keyboard.up("Control")

    rows = []
    wide = start(url, "wide", calls=CALLS)
    show(wide)
    rows.append(meter.row(f"a run with {CALLS} calls at once", watch))
    crowd = start(url, "crowd", children=CHILDREN)
    show(crowd)
    rows.append(meter.row(f"a run with {CHILDREN} children", watch))
    page.get_by_role("button", name="Show all").click()
    rows.append(meter.row("the same, all unfolded", watch))
    rows.append(meter.row("the same, from Stop to the end", stop))
    log = start(url, "talker", events=10_000, each_second=1000)
    show(log)
    page.get_by_role("tab", name="Events").click()
    rows.append(meter.row("a run that logs 1 000 events a second", lambda: wait_for_end(page, url, log)))
    read_to_the_end(page, url, log)
    rows.append(meter.row("the same, once it has 10 000 events and is over", watch))
    long = start(url, "talker", events=2000, each_second=1e9)
    wait_for_end(page, url, long)
    with stretched(page, url, long):
        show(long)
        rows.append(meter.row(f"a run of {HOURS} hours, while one zooms", zoom))
    for _ in range(LIVE):
        start(url, "waiter")
    page.goto(f"{url}/#/")
    page.locator(".row").first.wait_for()
    rows.append(meter.row(f"the list with {LIVE:,} live runs", watch))
    rows.append(meter.row("the same, while ten a second begin and end", change))
    return rows


@contextlib.contextmanager
def stretched(page, url, run):
    """Let a page see a run that is over as if it had taken hours."""
    record = httpx.get(f"{url}/runs/{run}", timeout=30).json()
    end = record["endedAt"]
    factor = HOURS * 3600 / (end - record["createdAt"])

    def moved(found):
        at = float(found[2])
        return f"{found[1]}{end - (end - at) * factor}"

    def answer(route):
        text = route.fetch().text()
        times = r'("(?:at|createdAt|startedAt|endedAt)": ?)(\d+\.?\d*)'
        kind = "text/event-stream" if "/events" in route.request.url else "application/json"
        route.fulfill(body=re.sub(times, moved, text), content_type=kind)

    pattern = re.compile(rf"/runs/{run}(/tree|/events\?.*)?$")
    page.route(pattern, answer)
    yield
    page.unroute(pattern)


def main():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "chromium is not installed"
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/runs.db"
        fill(store)
        process, url = serving(store, folder)
        try:
            with sync_playwright() as playwright:
                flags = [*FLAGS, "--js-flags=--expose-gc", "--enable-precise-memory-info"]
                browser = playwright.chromium.launch(executable_path=path, args=flags)
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.add_init_script(OBSERVE)
                rows = [*scrolled(page, url), *followed(page, url), *remembered(page, url)]
                with agents() as other:
                    rows += opened(page, other)
                    sizes = busy(page, other)
                browser.close()
        finally:
            process.terminate()
            process.wait(30)
    size = sum(one.stat().st_size for one in (ROOT / "src/stoppable/server/ui").rglob("*") if one.is_file())
    rows.append(("all files", f"{size:,} bytes"))
    table = "\n".join(["| what | measured |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
    head = ["what is shown", "scripting in a second", "all work in a second", "long tasks", "elements"]
    table += "\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *sizes])
    about = "\n".join(f"- {name}: {value}" for name, value in facts(["stoppable", "playwright"]))
    note = "Long tasks are those over 50 ms, as the browser counts them."
    text = f"# The web UI in a browser, measured\n\nWritten by `make bench-ui`. {note}\n\n{about}\n\n{table}\n"
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

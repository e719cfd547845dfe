"""Measures the web UI in a headless Chromium: what it weighs, how long it holds the page up, and what it keeps.

It needs the packages of `make test-ui` and a Chromium. A full run writes bench/results/ui.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from machine import facts
from table import Row, Section, Target, as_json, as_markdown, as_text, summary, write

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "ui.md"
METHOD = (
    "Written by `bench/ui.py`, in a headless Chromium: long tasks as the browser's own performance API reports them."
)
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WATCH = """
window.longTasks = [];
new PerformanceObserver((list) => { for (const entry of list.getEntries()) longTasks.push(entry.duration); })
  .observe({ type: "longtask" });
"""
LONGEST = "() => Math.max(0, ...longTasks.splice(0))"
CATEGORIES = ["toplevel", "__metadata"]
WALL_AND_CPU = (
    "0: none over 50 ms; CPU: of the longest task of the page's thread, which a busy machine does not make longer"
)


@contextmanager
def served(runs: int) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, HERE / "ui_under_test.py", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


@contextmanager
def opened(url: str) -> Iterator[Page]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.add_init_script(WATCH)
        page.goto(url)
        yield page
        browser.close()


def weight() -> Section:
    folder = resources.files("stoppable.server").joinpath("ui")
    size = sum(len(file.read_bytes()) for file in folder.iterdir() if file.is_file())
    return Section(
        title="What it weighs",
        rows=[
            Row(name="all files, uncompressed", value=size / 1000, unit="kB", target=Target(limit=120, absolute=True))
        ],
    )


@contextmanager
def watched(page: Page) -> Iterator[list[Row]]:
    """Measure the tasks of a page during the block; the rows are there after it."""
    browser = page.context.browser
    assert browser is not None
    rows: list[Row] = []
    page.evaluate(LONGEST)
    browser.start_tracing(page=page, categories=CATEGORIES)
    yield rows
    longest = page.evaluate(LONGEST)
    traced = json.loads(browser.stop_tracing())["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in traced
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    cpu = max((event.get("tdur", 0) for event in traced if (event["pid"], event["tid"]) in threads), default=0)
    rows.append(Row(name="longest task", value=longest, unit="ms", target=Target(limit=50, absolute=True)))
    rows.append(Row(name="its CPU", value=cpu / 1000, unit="ms"))


def scrolling(quick: bool) -> Section:
    runs = 1_000 if quick else 10_000
    with served(runs) as url, opened(url) as page:
        page.get_by_role("table").or_(page.get_by_role("grid")).first.wait_for()
        page.mouse.move(640, 500)
        with watched(page) as rows:
            for step in (1200, -1200):
                for _ in range(40 if quick else 300):
                    page.mouse.wheel(0, step)
                    page.wait_for_timeout(16)
        shown = page.evaluate("() => document.querySelectorAll('*').length")
    rows.append(Row(name="elements in the document then", value=shown, unit=""))
    return Section(title=f"Scrolling, with {runs:,} runs in the store", rows=rows, notes=[WALL_AND_CPU])


def following(quick: bool) -> Section:
    with served(10) as url, opened(url) as page:
        run_id = start(page, 40_000, 200)
        page.goto(f"{url}/#/runs/{run_id}")
        told(page, 200)
        with watched(page) as rows:
            page.wait_for_timeout(3_000 if quick else 15_000)
    return Section(title="Following 200 events a second", rows=rows, notes=[WALL_AND_CPU])


def keeping(quick: bool) -> Section:
    few, many = (1_000, 2_000) if quick else (10_000, 20_000)
    with served(10) as url, opened(url) as page:
        devtools = page.context.new_cdp_session(page)
        run_id = start(page, many * 2, 2_000)
        page.goto(f"{url}/#/runs/{run_id}")
        found = []
        for count in (few, many):
            told(page, count)
            found.append(heap(devtools) / 1e6)
    before, after = found
    rows = [
        Row(name=f"after {few:,} events", value=before, unit="MB"),
        Row(name=f"after {many:,}", value=after, unit="MB", ratio=after / before, target=Target(limit=1.2)),
    ]
    return Section(title="Memory of the page", rows=rows, notes=["heap in use, after a collection"])


def start(page: Page, events: int, each_second: int) -> str:
    body = {"agent": "talker", "input": {"events": events, "each_second": each_second}}
    asked = page.request.post(page.url.partition("#")[0] + "runs", data=body)
    found: str = asked.json()["id"]
    return found


def told(page: Page, events: int) -> None:
    """Wait until a run has told so many events."""
    url, _, run = page.url.partition("#/")
    while page.request.get(url + run).json()["lastEvent"] < events:
        page.wait_for_timeout(200)


def heap(devtools: CDPSession) -> float:
    devtools.send("HeapProfiler.collectGarbage")
    used: dict[str, Any] = devtools.send("Runtime.getHeapUsage")
    return float(used["usedSize"])


def measured(quick: bool) -> list[Section]:
    sections = []
    for part in (lambda _: weight(), scrolling, following, keeping):
        sections.append(part(quick))
        print(as_text(sections[-1]), flush=True)
    return sections


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    known = facts(("stoppable", "playwright"))
    sections = measured(options.quick)
    last_line = summary("ui", sections)
    print(json.dumps(as_json(known, sections, last_line)) if options.json else f"\n{last_line}")
    if not options.quick:
        write(RESULTS, as_markdown("The web UI, measured", METHOD, known, sections, last_line))


if __name__ == "__main__":
    main()

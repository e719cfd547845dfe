"""The pictures of the docs, each of a page that is as it should be; SCREENSHOTS=FOLDER keeps them."""

import os
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ..waiting import wait_until
from .conftest import serving
from .test_stop import SHORT, button

LARGEST = 150_000  # bytes of one
TEAM = {"team": "travel"}


def in_flight(server, run, count):
    """Wait until so many calls of a tree are under way."""

    def is_so():
        runs = server.ask("GET", "/runs?status=running&limit=100")["runs"]
        return sum(len(one["inFlight"]) for one in runs if one["rootId"] == run) >= count

    wait_until(is_so, 60)


def booked(server, run, *, calls=frozenset({"llm:compare", "tool:book"}), status="running"):
    """Wait until the sub-agents are in the calls that the pictures are about."""

    def is_so():
        runs = server.ask("GET", f"/runs?status={status}&limit=100")["runs"]
        return {label for one in runs if one["rootId"] == run for label in one["inFlight"]} == calls

    wait_until(is_so, 60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("pictures")) as server:
        yield server


@pytest.fixture(scope="module")
def scene(server):
    """Runs in every state, some of them with a story."""
    oslo = {"city": "Oslo", "gate": "oslo"}
    done = server.start("trip", "trip-oslo", input=oslo, labels=TEAM, owner="ann", policy={"grace": 600.0})
    booked(server, done)
    server.ask("POST", f"/runs/{done}/stop", json={"reason": "wrong city"})
    time.sleep(1.2)  # so that there is something to see of the stop
    server.open_gate("oslo")
    booked(server, done, calls={"tool:book"}, status="stopping")
    time.sleep(0.8)
    server.ask("POST", f"/runs/{done}/stop?wait=60", json={"mode": "immediate"})
    lost = server.start("importer", "import-7", input={"gate": "x"}, labels={"team": "data"}, owner="bob", policy=SHORT)
    in_flight(server, lost, 1)
    server.ask("POST", f"/runs/{lost}/stop?wait=60", json={"reason": "too slow"})
    server.start("invoice", "invoice-31", input={"number": 4711}, owner="bob")
    server.start("greet", "greet-2", input={"text": "hello"}, owner="ann")
    slow = {"city": "Lisbon"}
    stopping = server.start("trip", "trip-lisbon", input=slow, labels=TEAM, owner="ann", policy={"grace": 60.0})
    booked(server, stopping)
    live = [server.start("trip", f"trip-{name}", input=slow, labels=TEAM, owner="bob") for name in ("rome", "bern")]
    for run in live:
        booked(server, run)
    return {"stopped": done, "lost": lost, "stopping": stopping}


@pytest.fixture
def shoot(browser, server, tmp_path):
    contexts = []

    def shoot(name, address, ready, *, width=1280, height=800, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.goto(f"{server.url}/{address}")
        ready(page)
        folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
        path = folder / f"{name}.png"
        path.write_bytes(page.screenshot())
        assert path.stat().st_size < LARGEST
        return page

    yield shoot
    for context in contexts:
        context.close()


def list_is_there(page):
    expect(page.locator(".row")).to_have_count(7)
    expect(page.locator(".row[data-run='trip-rome'] .doing")).to_have_text("llm compare, tool book")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("runs", {}),
        ("runs-dark", {"scheme": "dark"}),
        ("runs-360", {"width": 360, "height": 720}),
    ],
)
def test_the_list(scene, shoot, name, options):
    shoot(name, "#/", list_is_there, **{"height": 480, **options})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("stopped", {}),
        ("stopped-dark", {"scheme": "dark"}),
        ("stopped-360", {"width": 360, "height": 720}),
    ],
)
def test_a_stopped_run_with_its_time_line(scene, shoot, name, options):
    def ready(page):
        expect(button(page, "Stopped")).to_be_disabled()
        expect(page.locator(".bar[data-crosses='true']:not([data-fate=''])")).to_have_count(2)
        expect(page.locator(".words")).to_contain_text("In flight: llm compare, finished; tool book, ")
        expect(page.locator(".rung")).to_have_count(2)

    shoot(name, f"#/runs/{scene['stopped']}", ready, **{"height": 620, **options})


def test_a_lost_run(scene, shoot):
    def ready(page):
        expect(button(page, "Unconfirmed")).to_be_disabled()
        expect(page.locator(".bar[data-fate='abandoned']")).to_have_count(1)

    shoot("lost", f"#/runs/{scene['lost']}", ready, height=620)


def test_a_run_that_is_stopping(scene, server, shoot):
    def ready(page):
        expect(page.get_by_text("in flight: llm compare, tool book")).to_be_visible()
        button(page, "Stop").click()
        expect(page.get_by_text("Stopping… after the current calls (llm compare, tool book).")).to_be_visible()
        expect(page.get_by_role("timer")).to_have_text(re.compile(r"Forced in \d+ s\."))
        expect(page.locator(".bar[data-crosses='true']")).to_have_count(2)

    shoot("stopping", f"#/runs/{scene['stopping']}", ready, height=620)
    shoot(
        "stopping-360",
        f"#/runs/{scene['stopping']}",
        lambda page: expect(button(page, "Stop now")).to_be_visible(),
        width=360,
        height=720,
    )

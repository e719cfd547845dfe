"""Whoever looks at the page sees the runs of one owner, and no others."""

import threading

import httpx
import pytest
import uvicorn
from fastapi import Request
from playwright.sync_api import expect

import stoppable
from stoppable.server import Principal, create_app
from stoppable.server.responses import Problem
from stoppable.supervisor import Supervisor

from ..served import DEADLINE


@stoppable.agent
async def napper() -> None:
    async with stoppable.boundary("tool", "nap"):
        await stoppable.sleep(3600)


async def who(request: Request) -> Principal:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not name:
        raise Problem(401, "unauthenticated", "send a key")
    if name == "auditor":
        return Principal(sees_all=True, actor=name, scopes="read audit")
    return Principal(owner=name, actor=name)


@pytest.fixture
def url():
    app = create_app(Supervisor(), [napper], principal=who)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_another_owner_sees_nothing(url, watched):
    page = watched.page
    watched.allow("401|404")
    started = {"agent": "napper", "runId": "of-ann"}
    headers = {"Authorization": "Bearer ann"}
    assert httpx.post(f"{url}/runs", json=started, headers=headers, timeout=DEADLINE).status_code == 201
    page.goto(url)
    page.get_by_label("Key").fill("bob")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_text("No runs yet")).to_be_visible()
    mine = httpx.post(
        f"{url}/runs",
        json={"agent": "napper", "runId": "of-bob"},
        headers={"Authorization": "Bearer bob"},
        timeout=DEADLINE,
    )
    assert mine.status_code == 201
    httpx.post(
        f"{url}/runs/of-ann/stop?wait=10", headers=headers, timeout=DEADLINE
    )  # what happens to it is not told either
    expect(page.locator(f"[data-run='{mine.json()['id']}']")).to_be_visible()
    assert page.locator("[data-run^='of-ann']").count() == 0
    page.goto(f"{url}/#/runs/of-ann")
    expect(page.get_by_text("There is no such run")).to_be_visible()


def test_who_may_only_read_is_offered_nothing_else(url, watched):
    page = watched.page
    watched.allow("401")
    started = {"agent": "napper", "runId": "looked-at"}
    made = httpx.post(f"{url}/runs", json=started, headers={"Authorization": "Bearer ann"}, timeout=DEADLINE).json()
    page.goto(url)
    page.get_by_label("Key").fill("auditor")
    page.get_by_role("button", name="Open").click()
    expect(page.locator(f"[data-run='{made['id']}'] .chip")).to_be_visible()
    expect(page.get_by_role("link", name="Audit")).to_be_visible()
    offers = page.get_by_role("button", name="Stop").or_(page.get_by_role("link", name="Start"))
    expect(offers).to_have_count(0)
    for address, ready in (
        (f"#/runs/{made['id']}", page.get_by_text("in flight: tool nap")),
        ("#/agents", page.get_by_role("heading", name="napper")),
        ("#/start/napper", page.get_by_text("You may not start runs here")),
    ):
        page.evaluate("(to) => (location.hash = to)", address)
        expect(ready).to_be_visible()
        expect(offers).to_have_count(0)
        page.keyboard.press("Escape")
    record = httpx.get(f"{url}/runs/{made['id']}", headers={"Authorization": "Bearer ann"}, timeout=DEADLINE).json()
    assert record["stop"] is None

"""A server takes further routers and services, behind its own authentication and before its own end."""

import contextlib
import threading

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request

import stoppable
from stoppable.server import Host, Principal, Service, create_app
from stoppable.supervisor import Supervisor

from .serving import client_of, over, served

KEY = "a key of this server"


async def where():
    """An agent that says on which thread it is executed."""
    return threading.current_thread().name


async def forever():
    await stoppable.sleep(60)


def extension(host: Host) -> APIRouter:
    router = APIRouter(prefix="/tasks")

    @router.post("/{task}")
    async def begin(task: str, request: Request):
        caller = host.caller(request, "start")
        handle = await host.start(where, key=task, owner=caller.owner, name="task")
        outcome = await handle.outcome()
        return {"run": handle.id, "thread": outcome.result, "actor": caller.actor}

    return router


async def test_a_router_starts_runs_on_the_loop_of_the_agents():
    with served([forever], routers=[extension]) as service:
        async with client_of(service) as client:
            answer = (await client.post("/tasks/t-1")).json()
            assert (answer["thread"], answer["actor"]) == ("stoppable-agents", "local")
            record = (await client.get(f"/runs/{answer['run']}")).json()
            assert (record["name"], record["key"], record["status"]) == ("task", "t-1", "completed")
            assert "/tasks/{task}" in (await client.get("/openapi.json")).json()["paths"]


async def test_a_router_is_behind_the_key_of_the_server():
    plain = APIRouter()
    plain.add_api_route("/mine", lambda: {"ok": True})
    with served([forever], api_key=KEY, routers=[plain, extension]) as service:
        async with client_of(service) as client:
            for method, path in (("GET", "/mine"), ("POST", "/tasks/t-1")):
                refused = await client.request(method, path)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthenticated")
                known = await client.request(method, path, headers={"Authorization": f"Bearer {KEY}"})
                assert known.status_code == 200
            foreign = {"Authorization": f"Bearer {KEY}", "Origin": "https://elsewhere.example"}
            assert (await client.post("/tasks/t-1", headers=foreign)).status_code == 403


async def test_a_router_is_behind_the_principal_of_the_app():
    async def who(request: Request) -> Principal:
        return Principal(owner=request.headers["user"], actor="ann", scopes=["read"])

    supervisor = Supervisor()
    app = create_app(supervisor, [forever], principal=who, routers=[extension])
    assert isinstance(app, FastAPI)
    async with supervisor, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        refused = await client.post("/tasks/t-1", headers={"user": "ann"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")


async def test_services_live_as_long_as_the_supervisor_is_open():
    steps = []

    def service(name):
        @contextlib.asynccontextmanager
        async def living(host):
            handle = await host.start(where, name=name)
            await handle.outcome()
            steps.append(f"{name} up")
            yield
            assert host.supervisor.is_open
            steps.append(f"{name} down")

        return living

    with served([forever], services=[service("one"), service("two")]) as service_:
        async with client_of(service_) as client:
            assert steps == ["one up", "two up"]
            listed = (await client.get("/runs")).json()["runs"]
            assert [run["name"] for run in listed] == ["two", "one"]
    assert steps[2:] == ["two down", "one down"]


def test_a_service_that_cannot_start_is_an_error_of_the_server():
    @contextlib.asynccontextmanager
    async def broken(host):
        raise ConnectionError("no broker")
        yield

    with pytest.raises(ConnectionError, match="no broker"):
        Service([forever], port=0, services=[broken]).run()


async def test_a_server_that_keeps_no_input():
    async def ask(question):
        return question

    with served([ask], keep_input=False) as service:
        async with client_of(service) as client:
            run_id = (await client.post("/runs", json={"agent": "ask", "input": "a secret"})).json()["id"]
            assert (await over(client, run_id))["input"] is None

"""The routes in somebody's own app: its auth, its prefix, its loop."""

import asyncio
import base64
import contextlib
import contextvars
import hashlib
import hmac
import json
import threading
from typing import Annotated

import httpx
import pytest
import uvicorn
from fastapi import Cookie, Depends, FastAPI, HTTPException

import stoppable
import stoppable.sync
from stoppable.server import AgentLoop, Principal, ServerLimits, create_app, router
from stoppable.supervisor import Supervisor

from .serving import DEADLINE, ended, event, started

SECRET = b"of the app"


def token(user, scopes):
    """Return what the app gives to its users: signed claims, as a JWT has them."""
    claims = base64.urlsafe_b64encode(json.dumps({"sub": user, "scopes": scopes}).encode())
    return f"{claims.decode()}.{hmac.new(SECRET, claims, hashlib.sha256).hexdigest()}"


async def session(session: str = Cookie("")) -> dict:
    claims, _, signature = session.partition(".")
    if not hmac.compare_digest(hmac.new(SECRET, claims.encode(), hashlib.sha256).hexdigest(), signature):
        raise HTTPException(401, "log in first")
    return json.loads(base64.urlsafe_b64decode(claims))


def who(claims: Annotated[dict, Depends(session)]) -> Principal:
    return Principal(owner=claims["sub"], actor=claims["sub"], scopes=claims["scopes"])


@contextlib.contextmanager
def running(app):
    """Serve any app as its author would: with uvicorn, on a socket."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none", timeout_graceful_shutdown=3))
    thread = threading.Thread(target=server.run, name="app")
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "it did not start"
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
        assert not thread.is_alive()


async def test_in_an_existing_app_under_a_prefix_with_its_own_cookie():
    loops = {}

    async def agent():
        loops["agent"] = asyncio.get_running_loop()
        stoppable.set_partial("so far")
        async with stoppable.boundary("tool", "wait"):
            await stoppable.sleep(60)

    def blocking():
        loops["thread"] = threading.current_thread()
        stoppable.sync.sleep(60)

    supervisor = Supervisor()

    @contextlib.asynccontextmanager
    async def lifespan(_):
        loops["app"] = asyncio.get_running_loop()
        async with supervisor:
            yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(router(supervisor, [agent, blocking], principal=who), prefix="/api/agents")

    @app.get("/own")
    async def own():
        return "theirs"

    with running(app) as url:
        prefix = f"{url}/api/agents"
        all_scopes = ["read", "start", "stop"]
        async with (
            httpx.AsyncClient(base_url=prefix, cookies={"session": token("ada", all_scopes)}, timeout=30) as ada,
            httpx.AsyncClient(base_url=prefix, cookies={"session": token("eve", ["read"])}, timeout=30) as eve,
            httpx.AsyncClient(base_url=prefix, cookies={"session": "forged.claims"}, timeout=30) as stranger,
        ):
            assert (await stranger.get("/runs")).json() == {"detail": "log in first"}, "the app's own way to say so"
            assert (await ada.get(f"{url}/own")).json() == "theirs"

            response = await ada.post("/runs", json={"agent": "agent"})
            run_id = response.json()["id"]
            assert response.headers["location"] == f"/api/agents/runs/{run_id}"
            assert response.json()["owner"] == "ada"
            await event(ada, run_id, "entered")
            assert loops["agent"] is loops["app"], "its pools and locks live there"

            assert (await eve.get(f"/runs/{run_id}")).json()["error"]["code"] == "run_not_found"
            assert (await eve.post(f"/runs/{run_id}/stop")).json()["error"]["code"] == "missing_scope"
            crossed = await ada.post(f"/runs/{run_id}/stop", headers={"Origin": "https://evil.example"})
            assert crossed.json()["error"]["code"] == "foreign_origin", "a cookie is sent from everywhere"
            assert (await ada.post("/runs", json={"agent": 1})).json()["error"]["code"] == "invalid_argument"

            second = await started(ada, "blocking")
            for stopped in (run_id, second):
                response = await ada.post(f"/runs/{stopped}/stop", json={"mode": "immediate"}, params={"wait": 10})
                assert response.json()["status"] == "stopped"
                assert response.json()["receipt"]["reason"]["actor"] == "ada"
            assert (await ended(ada, run_id))["outcome"]["partial"] == "so far"
            assert "/api/agents/runs/{run_id}/stop" in (await ada.get(f"{url}/openapi.json")).json()["paths"]


async def echo(value=None):
    return value


def anybody():
    return Principal(sees_all=True, actor="anybody")


@contextlib.asynccontextmanager
async def client_within(app):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_a_run_is_told_where_it_is_below_a_path_in_any_script():
    async with Supervisor() as supervisor:
        app = FastAPI()
        app.include_router(router(supervisor, [echo], principal=anybody), prefix="/of/{tenant}")
        async with client_within(app) as client:
            for tenant in ("%C5%81%C3%B3d%C5%BA", "a%20b", "a%3Fb", "a%0D%0AX-Evil:%20b"):
                response = await client.post(f"/of/{tenant}/runs", json={"agent": "echo"})
                assert response.status_code == 201
                assert (await client.get(response.headers["location"])).json()["id"] == response.json()["id"]
                assert "x-evil" not in response.headers


async def test_mounted_it_says_that_it_answers_under_any_name():
    async with Supervisor() as supervisor:
        app = FastAPI()
        app.mount("/below", create_app(supervisor, [echo]))
        async with client_within(app) as client:
            for path, status in (("/below/healthz", 200), ("/below/readyz", 200), ("/below/runs", 403)):
                assert (await client.get(path, headers={"Host": "10.0.0.1:80"})).status_code == status


async def told_over_http2(app, body, kind):
    """Send a body whose length is not told, as HTTP/2 has it, and return the status of the answer."""
    pieces = [body[at : at + 1000] for at in range(0, len(body), 1000)] or [b""]
    sent = []

    async def receive():
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "2",
        "method": "POST",
        "scheme": "https",
        "path": "/runs",
        "raw_path": b"/runs",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), *([(b"content-type", kind)] if kind else [])],
    }
    await app(scope, receive, send)
    return sent[0]["status"]


async def test_a_body_over_http2_is_checked_as_well():
    async with Supervisor() as supervisor:
        app = create_app(supervisor, [echo], limits=ServerLimits(body_bytes=2000))
        small, large = (json.dumps({"agent": "echo", "input": "x" * size}).encode() for size in (10, 5000))
        assert await told_over_http2(app, small, b"application/json") == 201
        assert await told_over_http2(app, large, b"application/json") == 413
        assert await told_over_http2(app, small, b"text/plain") == 415
        assert await told_over_http2(app, small, b"") == 415
        assert await told_over_http2(app, b"", b"") == 422, "no body at all"


async def test_runs_that_a_handler_starts_itself_are_shown_and_stopped_too():
    supervisor = Supervisor()
    begun = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(_):
        async with supervisor:
            yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(router(supervisor, principal=lambda: Principal(sees_all=True, actor="me")))

    @app.post("/chat")
    async def chat():
        try:
            async with supervisor.open_run("chat", run_id="chat-1"):
                begun.set()
                await stoppable.sleep(60)
        except stoppable.RunStopped as stopped:
            return {"stopped": str(stopped.outcome.reason)}

    with running(app) as url:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
            answer = asyncio.create_task(client.post("/chat"))
            async with asyncio.timeout(DEADLINE):
                while (await client.get("/runs/chat-1")).status_code == 404:
                    pass
            stop = await client.post("/runs/chat-1/stop", json={"reason": "typo"}, params={"wait": 5})
            assert stop.json()["status"] == "stopped"
            assert (await answer).json() == {"stopped": "typo (me)"}


async def test_create_app_opens_the_supervisor_and_a_loop_for_the_agents():
    seen = {}
    variable = contextvars.ContextVar("variable")

    @contextlib.asynccontextmanager
    async def resources():
        seen["lifespan"] = asyncio.get_running_loop()
        variable.set("of the lifespan")
        seen["thread"] = threading.current_thread().name
        yield
        seen["left"] = asyncio.get_running_loop()

    async def agent():
        seen["agent"] = asyncio.get_running_loop()
        seen["variable"] = variable.get(None)

    supervisor = Supervisor()
    with running(create_app(supervisor, agent, agent_loop=AgentLoop(resources))) as url:
        assert supervisor.is_open
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            await ended(client, await started(client, "agent"))
    assert seen["lifespan"] is seen["agent"] is seen["left"]
    assert seen["thread"] == "stoppable-agents"
    assert seen["variable"] == "of the lifespan"
    assert not supervisor.is_open


async def test_a_supervisor_that_was_open_stays_open():
    async def agent():
        pass

    async with Supervisor() as supervisor:
        with running(create_app(supervisor, [agent])) as url:
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                await started(client, "agent")
        assert supervisor.is_open


async def test_an_app_may_begin_again_with_the_loop_of_its_agents():
    async with Supervisor() as supervisor:
        app = create_app(supervisor, [echo], agent_loop=AgentLoop())
        for _ in range(2):
            async with app.router.lifespan_context(app), client_within(app) as client:
                run_id = (await client.post("/runs", json={"agent": "echo", "input": 1})).json()["id"]
                assert (await ended(client, run_id))["outcome"]["result"] == 1


def test_a_lifespan_that_fails_is_told():
    @contextlib.asynccontextmanager
    async def broken():
        raise RuntimeError("no database")
        yield

    loop = AgentLoop(broken)
    with pytest.raises(RuntimeError, match="no database"):
        loop.open()
    loop.close()


def test_a_router_needs_a_principal():
    with pytest.raises(TypeError, match="principal"):
        router(Supervisor(), [])

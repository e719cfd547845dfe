"""Log lines, errors, preflights and tracebacks: what is told to whom, and that nobody can put words in our mouth."""

import asyncio
import logging

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Header, Request
from starlette.responses import PlainTextResponse

import stoppable
from stoppable import Supervisor
from stoppable.server import Principal, router
from stoppable.server.logs import PlainFormatter

from .serving import client_of, ended, served, started

FORGED = "no\n12:00:00 INFO nothing to see\x1b[2J\r\u2028"


def record_of(message, error=None):
    return logging.LogRecord("stoppable", logging.ERROR, "file", 1, message, (), error)


def test_no_text_of_an_agent_begins_a_line_of_the_log_or_controls_the_terminal():
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        lines = PlainFormatter().format(record_of(FORGED, (type(error), error, error.__traceback__))).splitlines()
    assert "nothing to see" in lines[0]
    assert all(line.startswith("    | ") for line in lines[1:]), lines
    assert not any("\x1b" in line or "\u2028" in line for line in lines)


async def test_health_answers_to_head_and_a_redirect_to_anywhere_is_not_given():
    with served([]) as service:
        async with client_of(service) as client:
            for path in ("/healthz", "/readyz"):
                response = await client.head(path)
                assert (response.status_code, response.content) == (200, b"")
            response = await client.get("/runs/", headers={"Host": "127.0.0.1"})
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
            assert "location" not in response.headers


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_what_is_no_request_gets_an_error_in_the_same_shape(sent):
    with served([]) as service:
        host, port = service.url.removeprefix("http://").split(":")
        import asyncio

        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 400 ")
        assert httpx.Response(400, content=body).json()["error"]["code"] == "bad_request"


async def failing():
    raise RuntimeError("no")


async def by_header(x_user: str | None = Header(None)) -> Principal:
    return Principal(owner=x_user, actor="somebody")


async def test_a_principal_without_an_owner_sees_nothing_unless_that_is_said():
    with served([failing], principal=by_header) as service:
        async with client_of(service) as client:
            response = await client.get("/runs")
            assert (response.status_code, response.json()["error"]["code"]) == (403, "no_owner")
            assert (await client.get("/runs", headers={"X-User": "ada"})).status_code == 200
    with pytest.raises(stoppable.errors.InvalidArgument):
        Principal(owner="ada", sees_all=True)


async def test_the_traceback_of_a_tenant_names_no_directory_of_the_server():
    with served([failing], principal=by_header) as service:
        async with client_of(service, headers={"X-User": "ada"}) as client:
            trace = (await ended(client, await started(client, "failing")))["outcome"]["error"]["trace"]
            assert "RuntimeError: no" in trace
            assert 'File "test_small_print.py"' in trace
            assert "/" not in trace


async def test_a_router_in_an_app_answers_preflights_of_allowed_origins_alone():
    supervisor = Supervisor()
    friend, evil = "https://friend.example", "https://evil.example"

    async def me(authorization: str = Header()) -> Principal:
        return Principal(owner="me", actor=authorization)

    app = FastAPI()
    app.include_router(router(supervisor, principal=me, allowed_origins=[friend]), prefix="/agents-api")
    transport = httpx.ASGITransport(app)
    async with supervisor, httpx.AsyncClient(transport=transport, base_url="http://app.example") as client:
        asks = {"Access-Control-Request-Method": "POST"}
        allowed = await client.options("/agents-api/runs", headers={"Origin": friend, **asks})
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, friend)
        assert "POST" in allowed.headers["access-control-allow-methods"]
        refused = await client.options("/agents-api/runs/x/stop", headers={"Origin": evil, **asks})
        assert "access-control-allow-origin" not in refused.headers
        headers = {"Authorization": "me", "Origin": friend}
        listed = await client.get("/agents-api/runs", headers=headers)
        assert (listed.status_code, listed.headers["access-control-allow-origin"]) == (200, friend)
        unknown = await client.get("/agents-api/runs/nobody", headers=headers)
        assert (unknown.status_code, unknown.headers["access-control-allow-origin"]) == (404, friend)


async def test_a_body_that_is_wrong_is_told_in_the_words_of_whoever_sent_it():
    with served([]) as service:
        async with client_of(service, headers={"Content-Type": "application/json"}) as client:
            broken = await client.post("/runs", content=b'{"agent": ')
            lacking = await client.post("/runs", json={})
    message = broken.json()["error"]["message"]
    assert message.startswith("the body is not JSON: ")
    assert message.endswith(" (character 10)")
    assert lacking.json()["error"]["message"] == "agent: Field required"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_two_host_headers_are_refused(method):
    with served([], api_key="the-key-of-this-server") as service:
        host, port = service.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        request = f"{method} /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"more than one Host header" in answer


ADDRESSES = [
    ("localhost:9", (), "http://localhost:9"),
    ("127.0.0.1:9", (), "http://127.0.0.1:9"),
    ("[::1]:9", (), "http://[::1]:9"),
    ("agents.example", ("agents.example",), "http://agents.example"),
    ("evil.example", ("agents.example",), "{url}"),
    ("evil.example:80", (), "{url}"),
]


@pytest.mark.parametrize(("host", "allowed", "address"), ADDRESSES)
async def test_the_address_of_a_server_in_links_is_no_foreign_host_header(host, allowed, address):
    def links(server):
        made = APIRouter()

        async def address(request: Request):
            return PlainTextResponse(server.address(request))

        made.add_api_route("/address", address)
        return made

    async def me() -> Principal:
        return Principal(owner="me")

    with served([], principal=me, allowed_hosts=allowed, routers=[links]) as service:
        async with client_of(service, headers={"Host": host}) as client:
            assert (await client.get("/address")).text == address.format(url=service.url)

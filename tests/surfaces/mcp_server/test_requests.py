"""Who may do what, and what is answered to requests that are wrong."""

import asyncio
import json

import httpx
import pytest
from mcp.shared.exceptions import MCPError
from tests.waiting import until

from stoppable.server import ServerLimits

from ..openai_api.agents import GATES
from .conftest import DEADLINE, Call, by_header, client_of, ended, serving, text_of
from .test_stops import ACCEPT, ENVELOPE, tool_call

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
NEW = {**ACCEPT, "mcp-protocol-version": "2026-07-28"}


def request(method, params=None, number=1):
    return {"jsonrpc": "2.0", "id": number, "method": method, **({} if params is None else {"params": params})}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_each_method_needs_its_scope(mode):
    with serving(principal=by_header) as service:
        async with client_of(service, mode, headers={"x-owner": "ann", "x-scopes": "read"}) as reader:
            await reader.list_tools()
            with pytest.raises(MCPError, match="the scope 'start' is missing"):
                await reader.call_tool("echo", {"text": "go"})
        async with client_of(service, mode, headers={"x-owner": "ann", "x-scopes": "start"}) as starter:
            assert text_of(await starter.call_tool("echo", {"text": "go"})) == "go"
            for method in (starter.list_resources, starter.list_resource_templates):
                with pytest.raises(MCPError, match="the scope 'read' is missing"):
                    await method()


async def test_a_caller_without_scopes_may_nothing():
    with serving(principal=by_header) as service:
        async with client_of(service, headers={"x-owner": "ann", "x-scopes": "stop"}) as client:
            with pytest.raises(MCPError, match="the scope 'read' is missing"):
                await client.list_tools()


async def test_a_session_belongs_to_its_owner():
    with serving(principal=by_header) as service:
        async with httpx.AsyncClient(base_url=service.url, headers=ACCEPT, timeout=DEADLINE) as http:
            opened = await http.post("/mcp", json=request("initialize", HELLO), headers={"x-owner": "ann"})
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await http.post("/mcp", json=ready, headers={**session, "x-owner": "ann"})
            for owner, status in (("bob", 404), ("ann", 200)):
                asked = await http.post("/mcp", json=request("tools/list"), headers={**session, "x-owner": owner})
                assert asked.status_code == status
            assert (await http.delete("/mcp", headers={**session, "x-owner": "bob"})).status_code == 404
            assert (await http.delete("/mcp", headers={**session, "x-owner": "ann"})).status_code == 200


async def test_a_session_that_is_ended_stops_its_calls():
    with serving() as service:
        async with client_of(service, "legacy") as client:
            call = Call(client, "waits", {"text": "go"})
            await until(GATES.reached.is_set, DEADLINE)
        await asyncio.wait({call.task})
        assert call.task.exception() is not None
        record = await ended(service)
        assert (record.status, record.stop.reason.source) == ("stopped", "mcp")


async def test_the_key_of_the_server_is_asked_for():
    with serving(api_key="a key of its own") as service:
        async with httpx.AsyncClient(base_url=service.url, headers=NEW, timeout=DEADLINE) as http:
            refused = await http.post("/mcp", json=request("server/discover", {"_meta": ENVELOPE}))
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        async with client_of(service, headers={"authorization": "Bearer a key of its own"}) as client:
            assert text_of(await client.call_tool("echo", {"text": "go"})) == "go"


async def test_pages_of_other_origins_are_refused():
    with serving() as service:
        async with httpx.AsyncClient(base_url=service.url, headers=NEW, timeout=DEADLINE) as http:
            body = request("server/discover", {"_meta": ENVELOPE})
            foreign = await http.post("/mcp", json=body, headers={"origin": "http://evil.example"})
            rebound = await http.post("/mcp", json=body, headers={"host": "evil.example"})
            assert (foreign.status_code, rebound.status_code) == (403, 403)


async def test_what_opens_a_session_that_nobody_can_use_is_refused():
    with serving() as service:
        async with httpx.AsyncClient(base_url=service.url, headers=ACCEPT, timeout=DEADLINE) as http:
            assert (await http.get("/mcp")).status_code == 405
            for answer in (await http.delete("/mcp"), await http.post("/mcp", json=request("tools/list"))):
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == -32600
            large = await http.post("/mcp", content=b" " * 2, headers={"content-length": "2"})
            assert large.status_code == 415


LEAF = {"a": 1}
for _ in range(100):
    DEEP = LEAF = {"a": LEAF}
WRONG = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'"\xff"',
    "not a number": b'{"id": NaN}',
    "a lone surrogate": b'{"method": "\\ud800"}',
    "a list": b"[]",
    "a batch": json.dumps([request("tools/list")]).encode(),
    "a text": b'"tools/list"',
    "null": b"null",
    "too deep": json.dumps(request("tools/call", {"name": "echo", "arguments": DEEP})).encode(),
    "no version": b'{"id": 1, "method": "tools/list"}',
    "an old version": b'{"jsonrpc": "1.0", "id": 1, "method": "tools/list"}',
    "no method": b'{"jsonrpc": "2.0", "id": 1}',
    "a method that is a number": b'{"jsonrpc": "2.0", "id": 1, "method": 7}',
    "an unknown method": json.dumps(request("tools/eat")).encode(),
    "params that are a list": json.dumps(request("tools/call", [])).encode(),
    "an id that is an object": b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}',
    "an id that is null": b'{"jsonrpc": "2.0", "id": null, "method": "ping"}',
    "a long id": json.dumps(request("ping", number=2**70)).encode(),
    "a response": b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
    "a name that is null": json.dumps(tool_call(None, {}, **ENVELOPE)).encode(),
    "a name that is no agent": json.dumps(tool_call("\u0000", {}, **ENVELOPE)).encode(),
    "arguments that are a text": json.dumps(tool_call("echo", "text", **ENVELOPE)).encode(),
    "a huge number": json.dumps(tool_call("typed", {"count": 10**400}, **ENVELOPE)).encode(),
    "meta that is a text": json.dumps(request("tools/call", {"name": "echo", "_meta": "x"})).encode(),
    "meta that is null": json.dumps(request("tools/call", {"name": "echo", "_meta": None})).encode(),
    "a call id that is an object": json.dumps(tool_call("echo", {}, **ENVELOPE, **{"stoppable/call": {}})).encode(),
    "a call id that is no id": json.dumps(tool_call("echo", {}, **ENVELOPE, **{"stoppable/call": "../"})).encode(),
    "a stop without a call": json.dumps(request("stoppable/stop", {"_meta": ENVELOPE})).encode(),
    "a stop of nothing": json.dumps(
        request("stoppable/stop", {"call": "x", "mode": "graceful", "reason": "", "_meta": ENVELOPE})
    ).encode(),
    "a stop in no mode": json.dumps(
        request("stoppable/stop", {"call": "x", "mode": "soft", "reason": "", "_meta": ENVELOPE})
    ).encode(),
    "a cursor that is no cursor": json.dumps(request("resources/list", {"cursor": "x", "_meta": ENVELOPE})).encode(),
    "a cancel of nothing": b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}',
    "a cancel without an id": b'{"jsonrpc": "2.0", "method": "notifications/cancelled"}',
    "a second hello": json.dumps(request("initialize", HELLO)).encode(),
    "a hello without a version": json.dumps(request("initialize", {})).encode(),
}


def headers_of(body):
    """Return the headers that the new protocol repeats of a body."""
    try:
        content = json.loads(body)
        names = {"mcp-method": content["method"], "mcp-name": content["params"]["name"]}
    except (ValueError, LookupError, TypeError):
        return {}
    return {name: value for name, value in names.items() if isinstance(value, str) and value.isprintable()}


async def test_wrong_requests_are_errors_of_the_client_and_the_server_goes_on():
    with serving() as service:
        async with httpx.AsyncClient(base_url=service.url, headers=ACCEPT, timeout=DEADLINE) as http:
            opened = await http.post("/mcp", json=request("initialize", HELLO))
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await http.post("/mcp", json=ready, headers=session)
            for name, body in WRONG.items():
                for headers in ({}, session, {**NEW, **headers_of(body)}, {**NEW, "mcp-method": "else"}):
                    headers = {**headers, "content-type": "application/json"}  # noqa: PLW2901 - completed
                    answer = await http.post("/mcp", content=body, headers=headers)
                    assert answer.status_code < 500, (name, headers, answer.text)
                    assert "Traceback" not in answer.text
                    if answer.status_code >= 400:
                        assert isinstance(answer.json()["error"]["code"], int), (name, answer.text)
        async with client_of(service) as client:
            assert text_of(await client.call_tool("echo", {"text": "still here"})) == "still here"


async def test_a_body_that_is_too_large_is_refused():
    with serving(limits=ServerLimits(body_bytes=1000)) as service:
        async with httpx.AsyncClient(base_url=service.url, headers=NEW, timeout=DEADLINE) as http:
            answer = await http.post("/mcp", json=tool_call("echo", {"text": "x" * 2000}, **ENVELOPE))
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, -32600)


async def test_an_owner_starts_no_more_than_may_be():
    limits = ServerLimits(owner_runs=1)
    with serving(principal=by_header, limits=limits) as service:
        async with client_of(service, headers={"x-owner": "ann"}) as client:
            call = Call(client, "waits", {"text": "go"})
            await until(GATES.reached.is_set, DEADLINE)
            with pytest.raises(MCPError, match="which is the limit here"):
                await client.call_tool("echo", {"text": "go"})
            async with client_of(service, headers={"x-owner": "bob"}) as other:
                assert text_of(await other.call_tool("echo", {"text": "go"})) == "go"
            GATES.release.set()
            assert text_of(await call.task) == "third"

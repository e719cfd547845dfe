"""The unmodified client of MCP stops agents by its cancels, on every wire."""

import asyncio

import httpx
import pytest
from mcp.shared.exceptions import MCPError
from tests.waiting import until

from stoppable.server import Principal

from ..openai_api.agents import GATES
from .conftest import DEADLINE, HASTY, WIRES, Call, client_of, connected, ended, over, read, runs, serving, text_of


@pytest.mark.parametrize("wire", WIRES)
async def test_a_cancel_ends_all_that_an_agent_has_started_and_keeps_what_it_had_said(wire, marks):
    async with connected(wire) as client:
        call = Call(client, "research", {"folder": str(marks.folder)})
        await until(marks.have_begun, DEADLINE)
        run_id = await call.run_id()
        await call.cancel()
        facts = await over(client, run_id)
        assert marks.still_there() == [], "nothing is left that could leave a mark"
        assert (facts["status"], facts["text"]) == ("stopped", "notes on tides: one two")
        reason = facts["receipt"]["reason"]
        assert (reason["kind"], reason["source"]) == ("disconnect", "mcp")
        assert reason["message"] == "the client cancelled the call"
        assert facts["receipt"]["alive"] == []
        assert text_of(await client.call_tool("echo", {"text": "and now"})) == "and now", "the next call works"


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire.startswith("http")])
async def test_a_thread_that_nothing_can_end_is_named_and_never_called_stopped(wire):
    async with connected(wire, HASTY) as client:
        call = Call(client, "hangs", {"text": "go"})
        await until(GATES.is_blocking, DEADLINE)
        run_id = await call.run_id()
        await call.cancel()
        facts = await over(client, run_id)
        assert facts["status"] == "lost"
        assert facts["sentence"].startswith("The stop is not confirmed: ")
        assert "in hangs, inside threading.wait (thread stoppable hangs) may still be running" in facts["sentence"]
        [name] = facts["receipt"]["alive"]
        assert "hangs" in name
        GATES.release.set()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_run_that_is_stopped_elsewhere_answers_its_call_with_what_there_is(mode):
    with serving() as service:
        async with client_of(service, mode) as client:
            call = Call(client, "waits", {"text": "go"})
            await until(GATES.reached.is_set, DEADLINE)
            await until(lambda: call.words == "first ", DEADLINE)
            run_id = await call.run_id()
            await asyncio.to_thread(service.supervisor.blocking.stop, run_id, reason="enough", actor="ann")
            result = await call.task
            assert result.is_error
            assert text_of(result).splitlines() == [
                "Stopped: enough (ann). Everything it started has ended.",
                "What it had produced: first ",
            ]
            assert result.meta["stoppable/run"]["status"] == "stopped"
            await until(lambda: call.words == "first stopping", DEADLINE)  # a notification has a task of its own


async def test_the_answer_to_a_call_that_hangs_names_what_may_be_running():
    with serving(HASTY) as service:
        async with client_of(service) as client:
            call = Call(client, "hangs", {"text": "go"})
            await until(GATES.is_blocking, DEADLINE)
            await asyncio.to_thread(service.supervisor.blocking.stop, await call.run_id(), reason="enough")
            result = await call.task
            assert result.is_error
            assert "in hangs, inside threading.wait (thread stoppable hangs) may still be running" in text_of(result)
            GATES.release.set()


def is_idle(service):
    """Return whether the server has dealt with every request that it has got."""
    return service._server.server_state.connections == set()


ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
ACCEPT = {"accept": "application/json, text/event-stream"}


def tool_call(name, arguments, **meta):
    params = {"name": name, "arguments": arguments, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_a_client_of_the_new_protocol_that_leaves_stops_the_agent():
    headers = {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "waits"}
    body = tool_call("waits", {"text": "go"}, progressToken="t", **ENVELOPE)
    with serving() as service:
        async with httpx.AsyncClient(timeout=DEADLINE) as http:
            async with http.stream("POST", f"{service.url}/mcp", json=body, headers=headers) as response:
                assert response.status_code == 200, await response.aread()
                await until(GATES.reached.is_set, DEADLINE)
        record = await ended(service)
        assert (record.status, record.stop.reason.kind, record.stop.reason.source) == ("stopped", "disconnect", "mcp")


async def test_a_client_of_the_old_protocol_that_leaves_stops_nothing():
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    with serving() as service:
        async with httpx.AsyncClient(timeout=DEADLINE) as http:
            body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
            response = await http.post(f"{service.url}/mcp", json=body, headers=ACCEPT)
            headers = {**ACCEPT, "mcp-session-id": response.headers["mcp-session-id"]}
            body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await http.post(f"{service.url}/mcp", json=body, headers=headers)
            call = tool_call("waits", {"text": "go"})
            async with http.stream("POST", f"{service.url}/mcp", json=call, headers=headers):
                await until(GATES.reached.is_set, DEADLINE)
        await until(lambda: is_idle(service), DEADLINE)
        GATES.release.set()
        assert (await ended(service)).status == "completed"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_cancel_that_comes_while_the_run_is_being_stored_stops_it(mode):
    with serving() as service:
        prepare, is_stored, goes_on = service.supervisor.prepare, asyncio.Event(), asyncio.Event()
        test = asyncio.get_running_loop()

        async def slow_prepare(*args, **options):
            prepared = await prepare(*args, **options)
            test.call_soon_threadsafe(is_stored.set)
            while not goes_on.is_set():
                await asyncio.sleep(0.002)
            return prepared

        service.supervisor.prepare = slow_prepare
        async with client_of(service, mode) as client:
            call = Call(client, "waits", {"text": "go"})
            await is_stored.wait()
            await call.cancel()
            if mode == "auto":
                await until(lambda: is_idle(service), DEADLINE)
            else:
                await client.list_tools()  # the notification came before it
            goes_on.set()
            assert (await ended(service)).status == "stopped"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_end_and_a_cancel_at_once_leave_nothing_running(mode):
    with serving() as service:
        async with client_of(service, mode) as client:
            for _ in range(10):
                GATES.close()
                call = Call(client, "waits", {"text": "go"})
                await until(GATES.reached.is_set, DEADLINE)
                GATES.release.set()
                call.task.cancel()
                await asyncio.wait({call.task})
                record = await ended(service)
                if call.task.cancelled():
                    assert record.status in {"stopped", "completed"}
                else:
                    assert text_of(call.task.result()) == "third"
        assert {run.status for run in runs(service)} <= {"stopped", "completed"}


async def test_a_call_is_answered_when_the_server_shuts_down():
    with serving() as service:
        async with client_of(service) as client:
            call = Call(client, "waits", {"text": "go"})
            await until(GATES.reached.is_set, DEADLINE)
            service.stop()
            result = await call.task
            assert result.is_error
            assert result.meta["stoppable/run"]["reason"]["kind"] == "shutdown"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_caller_without_the_scope_stop_stops_nothing_by_leaving(mode):
    async def starter() -> Principal:
        return Principal(owner="ann", scopes="read start")

    with serving(principal=starter) as service:
        async with client_of(service, mode) as client:
            call = Call(client, "waits", {"text": "go"})
            await until(GATES.reached.is_set, DEADLINE)
            run_id = await call.run_id()
            await call.cancel()
            GATES.release.set()
            assert (await over(client, run_id))["status"] == "completed"
            assert text_of(await client.call_tool("echo", {"text": "on"})) == "on"


async def test_an_agent_that_swallows_the_cancel_is_stopped_once_it_has_ended():
    with serving() as service:
        async with client_of(service) as client:
            call = Call(client, "stubborn", {"text": "go"})
            await until(GATES.reached.is_set, DEADLINE)
            GATES.reached.clear()
            run_id = await call.run_id()
            await call.cancel()
            await until(GATES.reached.is_set, DEADLINE)
            while (
                status := (await read(client, run_id))["status"]
            ) == "running":  # its new status is stored a little later
                await asyncio.sleep(0.01)
            assert status == "stopping"
            GATES.release.set()
            assert (await over(client, run_id))["status"] == "stopped"


async def test_a_cancel_stops_one_call_of_several():
    with serving() as service:
        async with client_of(service) as client:
            first, second = Call(client, "waits", {"text": "one"}), Call(client, "waits", {"text": "two"})
            one, _two = await first.run_id(), await second.run_id()
            await until(lambda: len(GATES.calls) == 2, DEADLINE)
            await first.cancel()
            assert (await over(client, one))["status"] == "stopped"
            GATES.release.set()
            assert text_of(await second.task) == "third"


async def test_a_held_owner_starts_nothing():
    with serving() as service:
        hold = await asyncio.to_thread(service.supervisor.blocking.hold, all=True, reason="lunch")
        async with client_of(service) as client:
            with pytest.raises(MCPError, match="lunch"):
                await client.call_tool("echo", {"text": "go"})
            await asyncio.to_thread(service.supervisor.blocking.release, hold.id)
            assert text_of(await client.call_tool("echo", {"text": "go"})) == "go"

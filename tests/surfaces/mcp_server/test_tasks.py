"""A task is a run: it is ``working`` until all of it has ended, ``failed`` if that is not known, and it is kept."""

import asyncio
import contextlib

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from tests.served import serving_process
from tests.waiting import until

from ..openai_api.agents import GATES
from .conftest import DEADLINE, HASTY, by_header, client_of, command, over, read, runs, serving, text_of
from .tasks_client import Tasks, ask, begun, cancel, settled

try:
    import fastmcp
    import fastmcp_tasks.client
except ModuleNotFoundError:  # it needs a newer mcp than the oldest that we support
    fastmcp = None


@contextlib.asynccontextmanager
async def connected(policy=None, headers=None, **options):
    """Yield a server, and a client that takes tasks."""
    with serving(**({} if policy is None else {"policy": policy}), **options) as service:
        async with client_of(service, extensions=[Tasks()], headers=headers) as client:
            yield service, client


async def test_a_cancelled_task_is_working_until_all_that_it_has_started_has_ended(marks):
    async with connected() as (service, client):
        task = await begun(client, "research", {"folder": str(marks.folder)})
        assert (task.status, task.ttl) == ("working", None)
        await until(marks.have_begun, DEADLINE)
        await cancel(client, task.task_id)
        state = await settled(client, task.task_id)
        assert marks.still_there() == []
        assert state.status == "cancelled"
        assert state.message == "Stopped: the client cancelled the task (local). Everything it started has ended."
        assert (state.result, state.error) == (None, None)
        record = service.supervisor.blocking.get(task.task_id)
        assert (record.status, record.outcome.partial) == ("stopped", "notes on tides: one two")
        assert (record.stop.reason.kind, record.stop.reason.source, record.stop.mode) == ("user", "mcp", "graceful")
        await cancel(client, task.task_id)
        assert await ask(client, "get", task.task_id) == state, "a repeated cancel changes nothing"


async def test_over_stdio_too(marks):
    async with Client(stdio_client(command()), extensions=[Tasks()]) as client:
        task = await begun(client, "research", {"folder": str(marks.folder)})
        await until(marks.have_begun, DEADLINE)
        await cancel(client, task.task_id)
        state = await settled(client, task.task_id)
        assert marks.still_there() == []
        assert state.status == "cancelled"
        facts = await read(client, task.task_id)
        assert (facts["status"], facts["text"]) == ("stopped", "notes on tides: one two")


async def test_a_task_that_swallows_the_cancel_is_working_and_stopping_until_it_has_ended():
    async with connected() as (_, client):
        task = await begun(client, "stubborn", {"text": "go"})
        await until(GATES.reached.is_set, DEADLINE)
        GATES.reached.clear()
        await cancel(client, task.task_id)
        await until(GATES.reached.is_set, DEADLINE)  # it has the cancel, and goes on
        async with asyncio.timeout(DEADLINE):  # that it is stopping is stored a little later
            while (state := await ask(client, "get", task.task_id)).message != "stopping":
                assert state.status == "working"
        for _ in range(3):
            state = await ask(client, "get", task.task_id)
            assert (state.status, state.message) == ("working", "stopping")
        GATES.release.set()
        assert (await settled(client, task.task_id)).status == "cancelled"


async def test_a_task_that_nothing_can_end_has_failed_and_is_named():
    async with connected(HASTY) as (service, client):
        task = await begun(client, "hangs", {"text": "go"})
        await until(GATES.is_blocking, DEADLINE)
        await cancel(client, task.task_id)
        state = await settled(client, task.task_id)
        assert state.status == "failed"
        assert state.error["code"] == types.INTERNAL_ERROR
        assert "in hangs, inside threading.wait (thread stoppable hangs) may still be running" in state.error["message"]
        assert state.error["message"] == state.message
        [name] = state.error["data"]["stoppable"]["alive"]
        assert "hangs" in name
        assert service.supervisor.blocking.get(task.task_id).status == "lost"
        GATES.release.set()


async def test_a_task_that_completes_has_the_result_of_the_call():
    async with connected() as (_, client):
        task = await begun(client, "echo", {"text": "one two"})
        state = await settled(client, task.task_id)
        assert (state.status, state.text, state.result["isError"]) == ("completed", "one two", False)
        await cancel(client, task.task_id)
        assert (await ask(client, "get", task.task_id)).status == "completed"
        assert state.created_at <= state.changed_at


async def test_an_agent_that_fails_completes_its_task_with_an_error():
    async with connected() as (_, client):
        state = await settled(client, (await begun(client, "failing", {"text": "go"})).task_id)
        assert (state.status, state.result["isError"]) == ("completed", True)
        assert state.text == "ValueError: the tool is broken\nWhat it had produced: before "


async def test_a_task_that_is_stopped_elsewhere_is_cancelled():
    async with connected() as (service, client):
        task = await begun(client, "waits", {"text": "go"})
        await until(GATES.reached.is_set, DEADLINE)
        await asyncio.to_thread(service.supervisor.blocking.stop, task.task_id, reason="enough", actor="ann")
        state = await settled(client, task.task_id)
        assert (state.status, state.message) == (
            "cancelled",
            "Stopped: enough (ann). Everything it started has ended.",
        )


async def test_leaving_stops_no_task():
    with serving() as service:
        async with client_of(service, extensions=[Tasks()]) as client:
            task = await begun(client, "waits", {"text": "go"})
        GATES.release.set()
        async with client_of(service, extensions=[Tasks()]) as client:
            assert (await settled(client, task.task_id)).text == "third"


async def test_wrong_input_starts_no_task():
    async with connected() as (service, client):
        answer = await begun(client, "typed", {"count": "many"})
        assert answer.is_error
        assert "count" in text_of(answer)
        assert runs(service) == ()


@pytest.mark.parametrize("method", ["get", "cancel", "update"])
@pytest.mark.parametrize("task_id", ["nobody", "", "../etc", "x" * 200])
async def test_an_unknown_task_is_refused(method, task_id):
    async with connected() as (_, client):
        with pytest.raises((MCPError, ValueError), match=r"no task|header|name") as refused:
            await ask(client, method, task_id)
        assert getattr(refused.value, "code", types.INVALID_PARAMS) == types.INVALID_PARAMS


async def test_who_does_not_declare_the_extension_gets_no_tasks():
    async with connected() as (service, client):
        task = await begun(client, "waits", {"text": "go"})
        async with client_of(service) as plain:
            for method in ("get", "cancel", "update"):
                with pytest.raises(MCPError) as refused:
                    await ask(plain, method, task.task_id)
                assert refused.value.code == -32021
        async with client_of(service, "legacy", extensions=[Tasks()]) as old:
            answer = await old.session.call_tool("echo", {"text": "now"})
            assert text_of(answer) == "now"
            with pytest.raises(MCPError):
                await ask(old, "get", task.task_id)
        assert (await ask(client, "get", task.task_id)).status == "working"


async def test_tasks_of_another_owner_do_not_exist():
    async with connected(principal=by_header, headers={"x-owner": "ann"}) as (service, ann):
        task = await begun(ann, "waits", {"text": "go"})
        async with client_of(service, extensions=[Tasks()], headers={"x-owner": "bob"}) as bob:
            for method in ("get", "cancel", "update"):
                with pytest.raises(MCPError, match="no task") as refused:
                    await ask(bob, method, task.task_id)
                assert refused.value.code == types.INVALID_PARAMS
            with pytest.raises(MCPError, match="no resource"):
                await read(bob, task.task_id)
            assert (await bob.list_resources()).resources == []
        async with client_of(service, extensions=[Tasks()], headers={"x-owner": "ann", "x-scopes": "read"}) as reader:
            assert (await ask(reader, "get", task.task_id)).status == "working"
            with pytest.raises(MCPError, match="the scope 'stop' is missing"):
                await cancel(reader, task.task_id)
        await cancel(ann, task.task_id)
        assert (await over(ann, task.task_id))["status"] == "stopped"


@pytest.mark.parametrize("end", ["terminate", "kill"])
async def test_tasks_outlive_the_server_if_the_store_does(tmp_path, end):
    store = ("--store", f"sqlite:///{tmp_path}/runs.db", "--ttl", "10")
    with serving_process(*store) as (server, url):
        async with Client(f"{url}/mcp", extensions=[Tasks()]) as client:
            done = await begun(client, "echo", {"value": "kept"})
            assert (await settled(client, done.task_id)).text == "kept"
            task = await begun(client, "waiting")
            async with asyncio.timeout(DEADLINE):
                while (await read(client, task.task_id))["status"] != "running":
                    await asyncio.sleep(0.01)
            getattr(server.process, end)()
            await asyncio.to_thread(server.process.wait, DEADLINE)
    with serving_process(*store) as (_, url):
        async with Client(f"{url}/mcp", extensions=[Tasks()]) as client:
            assert (await ask(client, "get", done.task_id)).text == "kept"
            state = await settled(client, task.task_id)
            if end == "terminate":
                assert state.status == "cancelled"
                assert (await read(client, task.task_id))["receipt"]["reason"]["kind"] == "shutdown"
            else:
                assert (state.status, state.result["isError"]) == ("completed", True), "all of it is known to be dead"


@pytest.mark.skipif(fastmcp is None, reason="fastmcp-tasks is missing")
async def test_the_client_of_fastmcp_cancels_a_task(marks):
    with serving() as service:
        async with fastmcp.Client(f"{service.url}/mcp") as client:
            task = await fastmcp_tasks.client.call_tool_task(client, "research", {"folder": str(marks.folder)})
            await until(marks.have_begun, DEADLINE)
            await task.cancel()
            state = await task.wait(timeout=DEADLINE)
            assert marks.still_there() == []
            assert (state.status, state.task_id) == ("cancelled", runs(service)[0].id)
            assert (await client.call_tool("echo", {"text": "and now"})).content[0].text == "and now"

"""A task of another agent is a node of the tree; what became of it is what that agent says."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from a2a.client import A2AClientError, ClientConfig, ClientFactory
from a2a.types import GetTaskRequest, ListTasksRequest, TaskState
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidAgentResponseError,
    InvalidParamsError,
    UnsupportedOperationError,
)
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import stoppable
from stoppable import Policy, Status
from stoppable.adapters.a2a import client

from .executors import HangingCancel, InThread, RaisingCancel, Scripted, begin
from .serving import PATIENT, SECONDS, card_for, listening, message, served, state_of


class Silent(Scripted):
    """Says nothing of its task for a while: who asked does not know its id."""

    def __init__(self):
        super().__init__()
        self.asked, self.speak = asyncio.Event(), asyncio.Event()

    async def execute(self, context, queue):
        self.asked.set()
        await self.speak.wait()
        await super().execute(context, queue)


class Forwards(Scripted):
    """Asks the next agent in the chain, with a client that it closes."""

    def __init__(self, url):
        super().__init__()
        self.url = url

    async def work(self, context, updater):
        async with calling(self.url) as remote:
            async for _ in remote.send_message(message()):
                pass


ROOT = Path(__file__).parents[3]
SHORT = Policy(grace=0.3, interrupt=0.1, cancel=0.4, kill=0.3)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(sys.modules[client.__module__], "POLICY", PATIENT)


@contextlib.contextmanager
def process():
    """Run a service in a process of its own; its address and its pid."""
    command = [sys.executable, "-m", "tests.adapters.a2a.remote_service"]
    made = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield made.stdout.readline().strip(), made.pid
    finally:
        made.kill()
        made.wait()
        made.stdout.close()


@contextlib.asynccontextmanager
async def service(inner, *, is_plain=False, policy=PATIENT):
    """Run a service of its own, with a supervisor of its own; its address."""
    async with stoppable.Supervisor() as supervisor:
        made = served(inner) if is_plain else served(inner, supervisor, policy=policy)
        async with made as server:
            yield server.url + "/"


@contextlib.asynccontextmanager
async def calling(url, *, is_wrapped=True):
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        made = ClientFactory(ClientConfig(httpx_client=http)).create(card_for(url))
        yield client(made, name="far", url=url) if is_wrapped else made


class Caller:
    """An agent that asks another one and tells what it heard."""

    def __init__(self, remote):
        self.remote, self.heard, self.told = remote, [], asyncio.Event()

    async def __call__(self):
        async for event in self.remote.send_message(message()):
            self.heard.append(event)
            if event.status_update.status.state == TaskState.TASK_STATE_WORKING:
                self.told.set()
        return len(self.heard)

    async def start(self, policy=None):
        return await stoppable.spawn(self.__call__, name="caller", policy=policy)

    async def working(self):
        async with asyncio.timeout(SECONDS):
            await self.told.wait()


def fate_of(handle):
    return {str(node.fate) for node in handle.run.receipt.entries if node.kind == "remote"}


async def only_task(remote):
    tasks = (await remote.list_tasks(ListTasksRequest())).tasks
    return state_of(tasks[0])


async def outcome_of(handle):
    async with asyncio.timeout(SECONDS):
        return await handle.outcome()


async def test_a_stop_of_the_caller_cancels_the_task_there():
    async with service(Scripted()) as url, calling(url) as remote:
        caller = Caller(remote)
        handle = await caller.start()
        await caller.working()
        await handle.stop(reason="enough")
        assert (await outcome_of(handle)).status is Status.STOPPED
        assert fate_of(handle) == {"cancelled"}
        assert await only_task(remote) == "CANCELED"
        task = (await remote.list_tasks(ListTasksRequest())).tasks[0]
        assert task.metadata["stoppable"]["reason"] == "enough"


async def test_without_the_wrapper_the_task_there_goes_on():
    """What the wrapper is for."""
    async with service(Scripted()) as url, calling(url, is_wrapped=False) as remote:
        caller = Caller(remote)
        handle = await caller.start(policy=SHORT)
        await caller.working()
        await handle.stop("immediate")
        assert (await outcome_of(handle)).status is Status.STOPPED
        assert await only_task(remote) == "WORKING"


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_stop_before_the_id_is_known_is_told_when_it_is(mode):
    inner = Silent()
    async with service(inner) as url, calling(url) as remote:
        caller = Caller(remote)
        handle = await caller.start()
        async with asyncio.timeout(SECONDS):
            await inner.asked.wait()
        assert caller.heard == []
        handle.run.stop(mode)
        inner.speak.set()
        assert (await outcome_of(handle)).status is Status.STOPPED
        assert fate_of(handle) == {"cancelled"}
        assert await only_task(remote) == "CANCELED"


class Refuses(Silent):
    """Answers a message with an error, before there is a task."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    async def execute(self, context, queue):
        self.asked.set()
        await self.speak.wait()
        raise self.error


REFUSED, UNKNOWN = (Status.STOPPED, {"finished"}), (Status.LOST, {"unreachable"})


@pytest.mark.parametrize("error", [InvalidParamsError(), UnsupportedOperationError(), ContentTypeNotSupportedError()])
async def test_a_message_that_is_refused_while_the_run_stops_has_no_task_that_could_be_lost(error):
    inner = Refuses(error)
    async with service(inner, is_plain=True) as url, calling(url) as remote:
        assert await stopped_meanwhile(remote, inner.asked, inner.speak, PATIENT) == REFUSED


@pytest.mark.parametrize("error", [ValueError("the tool is broken"), InvalidAgentResponseError()])
async def test_an_error_that_does_not_say_what_became_of_the_task_leaves_the_run_lost(error):
    inner = Refuses(error)
    async with service(inner, is_plain=True) as url, calling(url) as remote:
        assert await stopped_meanwhile(remote, inner.asked, inner.speak, SHORT) == UNKNOWN


@pytest.mark.parametrize(("status", "expected"), [(401, REFUSED), (413, REFUSED), (408, UNKNOWN), (502, UNKNOWN)])
async def test_what_the_http_status_of_a_message_says_while_the_run_stops(status, expected):
    asked, speak = asyncio.Event(), asyncio.Event()

    async def answer(request):
        asked.set()
        await speak.wait()
        return Response(status_code=status)

    async with listening(Starlette(routes=[Route("/", answer, methods=["POST"])])) as url:
        async with calling(url + "/") as remote:
            policy = PATIENT if expected is REFUSED else SHORT
            assert await stopped_meanwhile(remote, asked, speak, policy) == expected


async def stopped_meanwhile(remote, asked, speak, policy):
    """Stop a caller before the other agent has answered, and return how it ended and what became of the node."""
    handle = await Caller(remote).start(policy=policy)
    async with asyncio.timeout(SECONDS):
        await asked.wait()
    handle.run.stop()
    speak.set()
    return (await outcome_of(handle)).status, fate_of(handle)


async def test_a_remote_that_cannot_be_asked_leaves_the_run_lost(monkeypatch):
    monkeypatch.setattr(sys.modules[client.__module__], "POLICY", SHORT)  # nobody hears of the third one
    with process() as (url, pid):
        async with calling(url) as remote:
            frozen, killed, unaware = (Caller(remote) for _ in range(3))
            handles = [await caller.start(policy=SHORT) for caller in (frozen, killed, unaware)]
            for caller in (frozen, killed, unaware):
                await caller.working()
            os.kill(pid, signal.SIGSTOP)
            await handles[0].stop(reason="enough")
            assert (await outcome_of(handles[0])).status is Status.LOST
            assert fate_of(handles[0]) == {"unreachable"}
            os.kill(pid, signal.SIGKILL)
            await handles[1].stop(reason="enough")
            assert (await outcome_of(handles[1])).status is Status.LOST
            assert fate_of(handles[1]) == {"unreachable"}
            outcome = await outcome_of(handles[2])  # nobody stopped it: the broken connection is its error
            assert outcome.status is Status.FAILED


async def test_a_plain_remote_whose_cancel_raises_has_failed_and_says_so():
    async with service(RaisingCancel(), is_plain=True) as url, calling(url) as remote:
        caller = Caller(remote)
        handle = await caller.start()
        await caller.working()
        await handle.stop()
        assert (await outcome_of(handle)).status is Status.STOPPED
        assert fate_of(handle) == {"finished"}
        assert await only_task(remote) == "FAILED"


async def test_a_plain_remote_whose_cancel_hangs_leaves_the_run_lost():
    inner = HangingCancel()
    async with service(inner, is_plain=True) as url, calling(url) as remote:
        caller = Caller(remote)
        handle = await caller.start(policy=SHORT)
        await caller.working()
        await handle.stop()
        assert (await outcome_of(handle)).status is Status.LOST
        assert fate_of(handle) == {"unreachable"}
        inner.let_go.set()


async def test_a_remote_that_completes_in_spite_of_the_stop_has_finished():
    inner = HangingCancel()
    async with service(inner, is_plain=True) as url, calling(url) as remote:
        caller = Caller(remote)
        handle = await caller.start()
        await caller.working()
        handle.run.stop()
        inner.go.set()
        outcome = await outcome_of(handle)
        assert outcome.status is Status.COMPLETED
        assert outcome.result == len(caller.heard)
        assert handle.run.receipt.too_late
        assert fate_of(handle) == {"finished"}
        inner.let_go.set()


async def test_a_remote_that_does_not_know_its_own_end_leaves_the_run_lost():
    inner = InThread()
    async with service(inner, policy=SHORT) as url, calling(url) as remote:
        caller = Caller(remote)
        handle = await caller.start(policy=SHORT)
        await caller.working()
        try:
            await handle.stop()
            assert (await outcome_of(handle)).status is Status.LOST
        finally:
            inner.go.set()


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_stop_travels_down_a_chain_of_services(mode):
    end = Scripted()
    async with service(end) as last, service(Forwards(last)) as middle, service(Forwards(middle)) as first:
        async with calling(first) as remote, calling(middle) as between, calling(last) as far:
            caller = Caller(remote)
            handle = await caller.start()
            async with asyncio.timeout(SECONDS):
                await end.working.wait()
            await handle.stop(mode)
            assert (await outcome_of(handle)).status is Status.STOPPED
            assert [await only_task(one) for one in (remote, between, far)] == ["CANCELED"] * 3


async def test_a_reader_that_leaves_stops_the_task_there(supervisor):
    inner = Scripted()
    async with served(inner, supervisor) as server, calling(server.url + "/") as remote:

        async def glances():
            events = remote.send_message(message())
            async with contextlib.aclosing(events):
                async for event in events:
                    if event.status_update.status.state == TaskState.TASK_STATE_WORKING:
                        return event.status_update.task_id

        handle = await stoppable.spawn(glances)
        outcome = await outcome_of(handle)
        assert outcome.status is Status.COMPLETED
        assert await server.state(outcome.result) == "CANCELED"


async def test_a_task_that_is_not_waited_for_keeps_the_run_open(supervisor):
    """A client that polls gets one answer at once; the run does not end before the task does."""
    inner = Scripted()
    async with served(inner, supervisor) as server:
        config = ClientConfig(httpx_client=server.http, streaming=False, polling=True)
        remote = client(ClientFactory(config).create(card_for(server.url + "/")))

        async def asks():
            (event,) = [event async for event in remote.send_message(message())]
            return event.task.id

        handle = await stoppable.spawn(asks)
        async with asyncio.timeout(SECONDS):
            await inner.working.wait()
        assert handle.status is Status.RUNNING
        inner.go.set()
        outcome = await outcome_of(handle)
        assert outcome.status is Status.COMPLETED
        assert await server.state(outcome.result) == "COMPLETED"


async def test_outside_a_run_it_is_a_plain_client(supervisor):
    inner = Scripted()
    inner.go.set()
    async with served(inner, supervisor) as server, calling(server.url + "/") as remote:
        assert client(remote) is remote
        heard = [event async for event in remote.send_message(message())]
        task = await remote.get_task(GetTaskRequest(id=heard[0].task.id))
        assert state_of(task) == "COMPLETED"


async def test_a_server_that_is_not_there_has_no_task_that_could_be_lost():
    async with calling("http://127.0.0.1:1/") as remote:

        async def asks():
            with pytest.raises(A2AClientError):
                await Caller(remote)()

        outcome = await outcome_of(await stoppable.spawn(asks))
        assert outcome.status is Status.COMPLETED


# Tasks that wait for their caller


class AsksFirst(Scripted):
    """Asks for input or a permission at the first message; goes on after a permission, and at the second message."""

    def __init__(self, state, *, goes_on=False):
        super().__init__()
        self.state, self.goes_on = state, goes_on

    async def execute(self, context, queue):
        updater = await begin(context, queue)
        self.tasks.append(context.task_id)
        if len(self.tasks) == 1:
            await updater.update_status(self.state)
        if len(self.tasks) > 1 or self.goes_on:
            self.working.set()
            await self.work(context, updater)
            await updater.complete()


INPUT, AUTH = TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED


async def asked(remote, then):
    """Send a message, and do something once the other agent asks; the id of its task."""
    events = remote.send_message(message())
    async with contextlib.aclosing(events):
        async for event in events:
            if event.status_update.status.state in {INPUT, AUTH}:
                await then(event.status_update.task_id)
                return event.status_update.task_id
    raise AssertionError("it did not ask")


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(("state", "goes_on"), [(INPUT, False), (AUTH, False), (AUTH, True)])
async def test_a_stop_reaches_a_task_that_waits_for_its_caller(state, goes_on, leaves):
    parked = asyncio.Event()

    async def wait(_=None):
        parked.set()
        await stoppable.sleep(SECONDS)

    async def asks():
        async def nothing(_):
            pass

        await asked(remote, nothing if leaves else wait)
        await wait()

    async with service(AsksFirst(state, goes_on=goes_on)) as url, calling(url) as remote:
        handle = await stoppable.spawn(asks)
        async with asyncio.timeout(SECONDS):
            await parked.wait()
        await handle.stop()
        assert (await outcome_of(handle)).status is Status.STOPPED
        assert fate_of(handle) == {"cancelled"}
        assert await only_task(remote) == "CANCELED"


@pytest.mark.parametrize(("state", "goes_on"), [(INPUT, False), (AUTH, True)])
async def test_a_run_does_not_wait_for_a_task_that_waits_for_its_caller(state, goes_on):
    """The task is there for the next run, which may answer."""

    async def asks():
        async def nothing(_):
            pass

        return await asked(remote, nothing)

    inner = AsksFirst(state, goes_on=goes_on)
    async with service(inner) as url, calling(url) as remote:
        outcome = await outcome_of(await stoppable.spawn(asks))
        assert outcome.status is Status.COMPLETED
        assert await only_task(remote) == TaskState.Name(state).removeprefix("TASK_STATE_")
        inner.go.set()


async def test_the_next_message_to_a_task_that_waits_is_its_node_from_then_on():
    async def asks():
        async def nothing(_):
            pass

        task_id = await asked(remote, nothing)
        async for _ in remote.send_message(message(task_id=task_id, message_id="m-2")):
            pass

    inner = AsksFirst(INPUT)
    async with service(inner) as url, calling(url) as remote:
        handle = await stoppable.spawn(asks)
        async with asyncio.timeout(SECONDS):
            await inner.working.wait()
        assert len([child for child in handle.run.children if child.outcome is None]) == 1
        await handle.stop()
        assert (await outcome_of(handle)).status is Status.STOPPED
        assert fate_of(handle) == {"cancelled"}
        assert await only_task(remote) == "CANCELED"


# Servers whose cancel meets trouble


class Wire:
    """A server without the SDK: its task works until a cancel arrives that it does not refuse."""

    def __init__(self, *refusals, forever=None):
        self.refusals, self.forever = list(refusals), forever
        self.cancels, self.canceled = 0, asyncio.Event()
        self.app = Starlette(routes=[Route("/", self.answer, methods=["POST"])])

    def task(self):
        state = "TASK_STATE_CANCELED" if self.canceled.is_set() else "TASK_STATE_WORKING"
        return {"id": "t", "contextId": "c", "status": {"state": state}}

    async def answer(self, request):
        body = await request.json()

        def result(value):
            return {"jsonrpc": "2.0", "id": body["id"], "result": value}

        async def events():
            yield f"data: {json.dumps(result({'task': self.task()}))}\n\n"
            working = {"taskId": "t", "contextId": "c", "status": self.task()["status"]}
            yield f"data: {json.dumps(result({'statusUpdate': working}))}\n\n"
            await self.canceled.wait()
            ended = {"taskId": "t", "contextId": "c", "status": self.task()["status"]}
            yield f"data: {json.dumps(result({'statusUpdate': ended}))}\n\n"

        if body["method"] == "SendStreamingMessage":
            return StreamingResponse(events(), media_type="text/event-stream")
        if body["method"] == "CancelTask":
            self.cancels += 1
            refusal = self.forever or (self.refusals.pop(0) if self.refusals else None)
            if refusal is not None:
                return refusal(body)
            self.canceled.set()
        elif self.forever is not None:
            return self.forever(body)
        return JSONResponse(result(self.task()))


def status(code):
    return lambda _: Response("try again", code)


def garbage(_):
    return Response("<html>", 200)


def error(code):
    return lambda body: JSONResponse({"jsonrpc": "2.0", "id": body["id"], "error": {"code": code, "message": "no"}})


NOT_FOUND = error(-32001)


@pytest.mark.parametrize("refusals", [[status(503), status(500), garbage], [error(-32603), status(429)], [NOT_FOUND]])
async def test_a_cancel_that_meets_an_error_is_repeated_within_the_grace(refusals):
    """Not found is one of them while the stream is open: a replica behind a load balancer may not have the task."""
    wire = Wire(*refusals)
    async with listening(wire.app) as url, calling(url + "/") as remote:
        caller = Caller(remote)
        handle = await caller.start()
        await caller.working()
        await handle.stop()
        outcome = await outcome_of(handle)
        assert outcome.status is Status.STOPPED
        assert fate_of(handle) == {"cancelled"}
    assert wire.cancels == len(refusals) + 1


async def test_a_task_that_is_not_found_while_its_stream_is_open_has_not_ended():
    wire = Wire(forever=NOT_FOUND)
    async with listening(wire.app) as url, calling(url + "/") as remote:
        caller = Caller(remote)
        handle = await caller.start(policy=SHORT)
        await caller.working()
        await handle.stop()
        assert (await outcome_of(handle)).status is Status.LOST
        assert fate_of(handle) == {"unreachable"}
        wire.canceled.set()


async def test_a_remote_that_says_it_is_lost_is_not_waited_for():
    """Its ladder has ended: waiting for ours would change nothing."""
    inner = InThread()
    async with service(inner, policy=SHORT) as url, calling(url) as remote:
        caller = Caller(remote)
        handle = await caller.start(policy=PATIENT)  # whose ladder takes longer than the test may
        await caller.working()
        try:
            await handle.stop()
            assert (await outcome_of(handle)).status is Status.LOST
            assert fate_of(handle) == {"abandoned"}
        finally:
            inner.go.set()

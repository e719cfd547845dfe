"""Tool calls, each a child run on a separate thread, and the pauses between tries of a model call.

A stop tells an MCP server to cancel the request of a tool call, and the call waits for the answer. The server itself
belongs to its client, and not to the run in which the client connects to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from openhands.sdk.event import AgentErrorEvent, ObservationEvent
from openhands.sdk.event.error_classification import AGENT_OUTCOME

import stoppable
from stoppable import sync
from stoppable.adapters.openhands import names
from stoppable.adapters.openhands.conversations import ConversationTurn, current_turn
from stoppable.adapters.openhands.terminals import RunningToolCall, current_call

_run_context: contextvars.ContextVar[contextvars.Context | None] = contextvars.ContextVar(
    "stoppable-openhands-llm", default=None
)
"""The context of the run that makes the model call; the call itself is detached from it."""


@contextlib.contextmanager
def model_call() -> Iterator[None]:
    """Let pauses between the tries in the block end with the current run, although the block detaches itself."""
    token = _run_context.set(contextvars.copy_context())
    try:
        yield
    finally:
        _run_context.reset(token)


def retry_decorator(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``LLM.retry_decorator`` whose pauses a stop ends."""

    @functools.wraps(plain)
    def retry(self: Any, *args: Any, **kwargs: Any) -> Any:
        decorate = plain(self, *args, **kwargs)

        def decorated(function: Callable[..., Any]) -> Any:
            retried = decorate(function)
            retrying = retried.retry  # of tenacity
            is_async = inspect.iscoroutinefunction(function)
            retrying.sleep = (_asleep if is_async else _sleep)(retrying.sleep)
            return retried

        return decorated

    return retry


def _sleep(plain: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        context = _run_context.get()
        if context is None:
            plain(seconds)
        else:
            context.copy().run(sync.sleep, seconds)

    return sleep


def _asleep(plain: Callable[[float], Any]) -> Callable[[float], Any]:
    async def sleep(seconds: float) -> None:
        context = _run_context.get()
        if context is None:
            await plain(seconds)
        else:
            await asyncio.create_task(stoppable.sleep(seconds), context=context.copy())

    return sleep


_LOOK_SECONDS = 0.05

Events = list[Any]
Work = Callable[[], Events]


class _CallQueue:
    """Limits how many tool calls of a batch run at a time, and keeps their order."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._tickets: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def ticket(self) -> threading.Event:
        """Return an event that is set when it is the call's turn."""
        turn = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                turn.set()
            else:
                self._tickets.append(turn)
        return turn

    def over(self, ticket: threading.Event) -> None:
        """Let the next call begin, because one has ended or will not begin."""
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
            elif self._tickets:
                self._tickets.popleft().set()
            else:
                self._free += 1


class _Batch:
    """The tool calls of one answer of the model."""

    def __init__(self, executor: Any, actions: Sequence[Any], runner: Any, tools: Any, conversation: Any) -> None:
        turn = current_turn.get()
        assert turn is not None, "in a run of a conversation"
        self._turn: ConversationTurn = turn
        self._executor, self._runner, self._conversation = executor, runner, conversation
        self._tools = tools or {}
        self._queue = _CallQueue(names.limit_of(executor))
        self.changed = threading.Event()
        self.work = [functools.partial(self._execute, action, self._queue.ticket()) for action in actions]

    def _execute(self, action: Any, ticket: threading.Event) -> Events:
        """Execute one tool call; this is the body of its run."""
        run = stoppable.current_run()
        assert run is not None, "it is the body of one"
        run.annotate(tool=action.tool_name, tool_call=action.tool_call_id)
        tool = self._tools.get(action.tool_name)
        call = RunningToolCall(run, self._turn.shells, None if tool is None else tool.executor)
        calls = self._turn.supervised.calls
        calls[action.tool_call_id] = call

        def over(_: object) -> None:  # also for a call whose thread never returns
            calls.pop(action.tool_call_id, None)
            self._queue.over(ticket)
            self.changed.set()

        stoppable.on_end(over)
        with stoppable.on_stop(ticket.set):
            ticket.wait()

        def runner(action: Any) -> Events:
            # Entered after the locks of the tool are held, so that a stop during that wait prevents the call.
            with call.executing(), stoppable.boundary("tool", action.tool_name):
                events: Events = self._runner(action)
                return events

        stoppable.check()
        events: Events = names.run_safe(self._executor, action, runner, tool, self._conversation)
        return events


def _name(action: Any) -> str:
    return f"tool {action.tool_name}"


def _answer(action: Any, outcome: stoppable.Outcome[Events]) -> Events:
    """Return the answer of a tool call for the model: its result, or that it was stopped."""
    if outcome.status == "completed" and outcome.result is not None:
        return outcome.result
    text = f"This tool call was {outcome.status}"
    if outcome.reason is not None:
        text += f" ({outcome.reason.message})" if outcome.reason.message else ""
        text += " before it finished. Do not repeat it unless you are asked to."
    elif outcome.error is not None:
        text += f": {outcome.error}"
    texts = [event.observation.text for event in outcome.result or () if isinstance(event, ObservationEvent)]
    if any(texts):
        text += "\nIts output up to then:\n" + "\n".join(texts)
    return [
        AgentErrorEvent(
            error=text,
            tool_name=action.tool_name,
            tool_call_id=action.tool_call_id,
            classification=AGENT_OUTCOME,
        )
    ]


async def aexecute(executor: Any, actions: Sequence[Any], runner: Any, tools: Any, conversation: Any) -> list[Events]:
    """Execute the tool calls of a batch, without blocking the event loop."""
    batch = _Batch(executor, actions, runner, tools, conversation)
    handles: list[stoppable.RunHandle[Events]] = []
    try:
        for action, work in zip(actions, batch.work, strict=True):
            handles.append(await stoppable.spawn(work, name=_name(action)))
        outcomes = [await handle.outcome() for handle in handles]
    except asyncio.CancelledError:
        _keep_finished(conversation, [handle.run for handle in handles])
        raise
    return [_answer(action, outcome) for action, outcome in zip(actions, outcomes, strict=True)]


def execute(executor: Any, actions: Sequence[Any], runner: Any, tools: Any, conversation: Any) -> list[Events]:
    """Execute the tool calls of a batch; from INTERRUPT on, a stop does not wait for a tool that ignores it."""
    batch = _Batch(executor, actions, runner, tools, conversation)
    cut = threading.Event()

    def cut_off() -> None:
        cut.set()
        batch.changed.set()

    with stoppable.on_interrupt(cut_off):
        handles = [sync.spawn(work, name=_name(action)) for action, work in zip(actions, batch.work, strict=True)]
        while any(handle.run.outcome is None for handle in handles) and not cut.is_set():
            batch.changed.wait(_LOOK_SECONDS)
            batch.changed.clear()
    if cut.is_set():
        _keep_finished(conversation, [handle.run for handle in handles])
        stoppable.check()
    return [_answer(action, handle.outcome()) for action, handle in zip(actions, handles, strict=True)]


def _keep_finished(conversation: Any, runs: Sequence[stoppable.Run]) -> None:
    for run in runs:
        outcome = run.outcome
        for event in (outcome.result if outcome is not None else None) or ():
            names.tell(conversation, event)


_logger = logging.getLogger("stoppable.adapters.openhands")


class McpRequest:
    """The request of one tool call, which a stop may meet before it is sent."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.is_cancelled: bool = False  # like the number, set on the loop of the client alone
        self._number: int | None = None

    def cancel(self) -> None:
        """Tell the server to cancel it, from any thread."""
        names.portal_of(self._client).call(self._tell)

    def note_number(self, number: int) -> None:
        """Note the number of the request, just before it is sent."""
        if self.is_cancelled:
            raise RuntimeError("the tool call was stopped before it reached the MCP server")
        self._number = number

    async def _tell(self) -> None:
        self.is_cancelled = True
        if self._number is not None:
            await self._client.cancel(self._number, "the tool call was stopped")


_current_request: contextvars.ContextVar[McpRequest | None] = contextvars.ContextVar(
    "stoppable-openhands-mcp", default=None
)


def _cancellable_call(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``MCPClient.call_async_from_sync`` that a stop of the tool call passes on to the server.

    The answer is waited for, as nothing else says that the server has ended the work; a run that is given up without it
    is lost.
    """

    @functools.wraps(plain)
    def call(self: Any, awaitable_or_fn: Any, *args: Any, timeout: float, **kwargs: Any) -> Any:
        tool_call = current_call.get()
        if tool_call is None:
            return plain(self, awaitable_or_fn, *args, timeout=timeout, **kwargs)
        request = McpRequest(self)

        async def execute() -> Any:
            _current_request.set(request)
            awaitable: Any = awaitable_or_fn(*args, **kwargs) if callable(awaitable_or_fn) else awaitable_or_fn
            return await awaitable

        tool_call.when_interrupted(request.cancel)
        answer = plain(self, execute, timeout=timeout)
        if request.is_cancelled and getattr(answer, "is_error", False):
            stoppable.check()  # the server ended it because of the stop
        return answer

    return call


def _numbered_send(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``send_request`` of sessions that notes the number of the request of a tool call."""

    @functools.wraps(plain)
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        call = _current_request.get()
        if call is not None and names.is_tool_call(request):
            call.note_number(self._request_id)
        return await plain(self, request, *args, **kwargs)

    return send


def _detached_connect(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``MCPClient.connect`` that starts the server, and the tasks that read from it, outside every run.

    The client serves all runs of a conversation, or of several, and ends the server when it is closed.
    """

    @functools.wraps(plain)
    async def connect_outside(self: Any) -> None:
        with stoppable.detached():
            await plain(self)

    return connect_outside


def wrap_mcp_client() -> None:
    """Wrap the client of MCP, or say in the log that its calls cannot be cancelled."""
    if lacking := names.missing_for_mcp():
        _logger.warning("tool calls of MCP servers cannot be cancelled: mcp has no %s", ", ".join(lacking))
        return
    client, session = names.MCP_CLIENT, names.MCP_SESSION
    client.connect = _detached_connect(client.connect)
    client.call_async_from_sync = _cancellable_call(client.call_async_from_sync)
    session.send_request = _numbered_send(session.send_request)

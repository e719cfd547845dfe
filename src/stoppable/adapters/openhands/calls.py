"""Tool calls: each is a child run on a separate thread, with its own token."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from openhands.sdk.event import AgentErrorEvent, ObservationEvent
from openhands.sdk.event.error_classification import AGENT_OUTCOME

import stoppable
from stoppable import sync
from stoppable.adapters.openhands import names
from stoppable.adapters.openhands.supervised import Turn, current_turn
from stoppable.adapters.openhands.terminals import Call

_LOOK_SECONDS = 0.05

Events = list[Any]
Work = Callable[[], Events]


class _Queue:
    """Limits how many tool calls of a batch run at a time, and keeps their order."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def ticket(self) -> threading.Event:
        """Return an event that is set when it is the call's turn."""
        turn = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                turn.set()
            else:
                self._waiting.append(turn)
        return turn

    def over(self, ticket: threading.Event) -> None:
        """Let the next call begin, because one has ended or will not begin."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            elif self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class _Batch:
    """The tool calls of one answer of the model."""

    def __init__(self, executor: Any, actions: Sequence[Any], runner: Any, tools: Any, conversation: Any) -> None:
        turn = current_turn.get()
        assert turn is not None, "in a run of a conversation"
        self._turn: Turn = turn
        self._executor, self._runner, self._conversation = executor, runner, conversation
        self._tools = tools or {}
        self._queue = _Queue(names.limit_of(executor))
        self.changed = threading.Event()
        self.work = [functools.partial(self._execute, action, self._queue.ticket()) for action in actions]

    def _execute(self, action: Any, ticket: threading.Event) -> Events:
        """Execute one tool call; this is the body of its run."""
        run = stoppable.current_run()
        assert run is not None, "it is the body of one"
        run.annotate(tool=action.tool_name, tool_call=action.tool_call_id)
        tool = self._tools.get(action.tool_name)
        call = Call(run, self._turn.shells, None if tool is None else tool.executor)
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
            with call.executed(), stoppable.boundary("tool", action.tool_name):
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
    said = f"This tool call was {outcome.status}"
    if outcome.reason is not None:
        said += f" ({outcome.reason.message})" if outcome.reason.message else ""
        said += " before it finished. Do not repeat it unless you are asked to."
    elif outcome.error is not None:
        said += f": {outcome.error}"
    texts = [event.observation.text for event in outcome.result or () if isinstance(event, ObservationEvent)]
    if any(texts):
        said += "\nIts output up to then:\n" + "\n".join(texts)
    return [
        AgentErrorEvent(
            error=said,
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

    def interrupted() -> None:
        cut.set()
        batch.changed.set()

    with stoppable.on_interrupt(interrupted):
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

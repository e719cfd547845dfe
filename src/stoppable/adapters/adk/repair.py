"""The repair of a session by its next turn, if the end of an earlier one could not be written."""

from __future__ import annotations

import weakref
from typing import Any

from google.adk.runners import Runner

from stoppable import Filter, Status
from stoppable.adapters.adk.sealing import answer, answered_in, repeated, seal
from stoppable.adapters.adk.sessions import key_of, short
from stoppable.adapters.adk.turn import Turn
from stoppable.supervisor import Supervisor

NOT_KNOWN = "The run ended before this call was answered: it may have taken effect."

_RECENT = 10
_BROKEN = frozenset({Status.STOPPED, Status.LOST, Status.FAILED})

_unsealed: weakref.WeakKeyDictionary[Any, dict[str, list[Turn]]] = weakref.WeakKeyDictionary()
"""The turns of this process whose end is not in their session, by session service and session."""


def remember(runner: Runner, user_id: str, session_id: str, turn: Turn) -> None:
    """Note that the end of a turn could not be written."""
    sessions = _unsealed.setdefault(runner.session_service, {})
    sessions.setdefault(key_of(runner.app_name, user_id, session_id), []).append(turn)


async def repair(
    runner: Runner,
    user_id: str,
    session_id: str,
    supervisor: Supervisor | None,
    *,
    app_name: str,
    arguments: dict[str, Any],
) -> None:
    """Write what earlier turns of a session left out; ``arguments`` are those of the turn that is about to begin.

    What this process remembers is written as it would have been. If another process has left the session, which the
    store knows, each call without an answer gets one, except those that wait for something: for the client of a
    long-running tool, a confirmation, or the next message to a task.
    """
    await _seal_remembered(runner, user_id, session_id)
    if supervisor is None or arguments.get("invocation_id") is not None:  # an invocation that is resumed goes on itself
        return
    key, owner = key_of(app_name, user_id, session_id), short(user_id)
    recent = (await supervisor.list(Filter(key=key, owner=owner, roots=True), limit=_RECENT)).runs
    if sum(not run.over for run in recent) > 1 or not any(run.status in _BROKEN for run in recent):
        return  # another turn is under way, whose calls are not answered yet, or all is well
    await repeated(lambda: _answer_calls(runner, user_id, session_id, arguments.get("new_message")))


async def _seal_remembered(runner: Runner, user_id: str, session_id: str) -> None:
    sessions = _unsealed.get(runner.session_service)
    key = key_of(runner.app_name, user_id, session_id)
    while sessions and (turns := sessions.get(key)):
        turn = turns[0]
        await seal(runner, user_id, session_id, turn, lambda _: None)
        if turn in turns:  # unless another turn, which began at the same time, has done so
            turns.remove(turn)
        if not turns:
            sessions.pop(key, None)


async def _answer_calls(runner: Runner, user_id: str, session_id: str, message: Any) -> None:
    service = runner.session_service
    session = await service.get_session(app_name=runner.app_name, user_id=user_id, session_id=session_id)
    if session is None:
        return
    waiting = answered_in(session.events)
    waiting.update(part.function_response.id for part in (message and message.parts) or [] if part.function_response)
    for event in session.events:
        waiting.update(event.long_running_tool_ids or ())
        waiting.add(getattr(event, "isolation_scope", None) or "")  # the call of a task that goes on
    for event in list(session.events):
        results = [(call, {"error": NOT_KNOWN}) for call in event.get_function_calls() if call.id not in waiting]
        if results:
            await service.append_event(session=session, event=answer(event.invocation_id, event, results))

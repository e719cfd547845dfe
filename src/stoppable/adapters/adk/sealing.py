"""The end of a stopped turn in its session: calls have answers. What could not be written, the next turn writes."""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.events.event import Event
from google.adk.runners import Runner
from google.genai import types

from stoppable import Filter, Status
from stoppable.adapters._whole_calls import settle
from stoppable.adapters.adk.sessions import key_of, short
from stoppable.adapters.adk.turns import AdkTurn
from stoppable.adapters.turn import NOT_KNOWN
from stoppable.supervisor import Supervisor

CODE = "INVOCATION_ABORTED"
"""What google-adk 2.11 and later put into the events of an aborted invocation."""

MESSAGE = "The run was stopped."

_PAUSES = (0.01, 0.04, 0.16, 0.64)


async def seal(runner: Runner, user_id: str, session_id: str, turn: AdkTurn, tell: Callable[[Event], None]) -> None:
    """Write the end of a stopped turn into its session, and tell the events that its reader does not have yet.

    It reads the session again, because the copy of the run is stale, and writes only what is missing, so that it can
    be repeated: an answer to each call that has none and the text that was streamed, or else one event
    ``INVOCATION_ABORTED``. A write that fails is repeated, because another turn of the session may have written too.
    """
    if turn.invocation_id is None:  # no agent had begun: nothing of it is in the session
        tell(abort_event(turn, runner.agent.name))
        return
    await retry_write(lambda: _seal(runner, user_id, session_id, turn, tell))


async def retry_write(write: Callable[[], Awaitable[None]]) -> None:
    """Write something into a session, and again if that fails; session services have no common error."""
    for pause in _PAUSES:
        try:
            return await write()
        except Exception:
            await asyncio.sleep(pause)
    return await write()


async def _seal(runner: Runner, user_id: str, session_id: str, turn: AdkTurn, tell: Callable[[Event], None]) -> None:
    service, author = runner.session_service, runner.agent.name
    await settle(service)
    session = await service.get_session(app_name=runner.app_name, user_id=user_id, session_id=session_id)
    if session is None:
        tell(abort_event(turn, author))
        return
    mine = [event for event in session.events if event.invocation_id == turn.invocation_id]
    ends = [event for event in mine if event.error_code == CODE]
    answers = _answers(turn, session.events, mine)
    for event in ends:
        if event.id not in turn.forwarded_ids:
            tell(event)
    for event in answers:
        tell(await service.append_event(session=session, event=event))
    is_new = not answers and not ends
    for speaker, text in turn.unsaved.texts().items():
        if not text:
            continue
        content = types.Content(role="model", parts=[types.Part(text=text)])
        event = await service.append_event(session=session, event=abort_event(turn, str(speaker), content))
        turn.unsaved.forget_text(speaker)
        tell(event)
        is_new = False
    if is_new:
        tell(await service.append_event(session=session, event=abort_event(turn, author)))


def _answers(turn: AdkTurn, events: list[Any], mine: list[Any]) -> list[Event]:
    """Answer the calls of a turn that have no answer, those of one event in one.

    A call that a human confirmed was made in an earlier turn, whose answer says only that it waits.
    """
    last_message = max((place for place, event in enumerate(mine) if event.author == "user"), default=0)
    earlier_ids = {call_id for call_id in answered_in(mine) if not turn.unsaved.has_begun(call_id)}
    answered_ids = earlier_ids | answered_in(mine[last_message:])
    assert turn.invocation_id is not None, "its agent has begun"
    answers = []
    for event in events:
        is_mine = event.invocation_id == turn.invocation_id
        calls = [call for call in event.get_function_calls() if is_mine or turn.unsaved.has_begun(call.id)]
        results = [(call, _result(turn, call.id)) for call in calls if call.id not in answered_ids]
        if results:
            answers.append(answer(turn.invocation_id, event, results))
    return answers


def answered_in(events: list[Any]) -> set[str]:
    """Return the ids of the calls that have an answer among some events."""
    return {response.id for event in events for response in event.get_function_responses()}


def _result(turn: AdkTurn, call_id: str) -> Any:
    answer = turn.unsaved.answer(call_id)
    return answer.result if answer.is_result else {"error": answer.text}


def answer(invocation_id: str, event: Any, results: list[tuple[Any, Any]]) -> Event:
    """Return the event that answers calls of another event, each with its result."""
    parts = [
        types.Part(
            function_response=types.FunctionResponse(
                id=call.id, name=call.name, response=result if isinstance(result, dict) else {"result": result}
            )
        )
        for call, result in results
    ]
    scope = getattr(event, "isolation_scope", None)
    more = {} if scope is None else {"isolation_scope": scope}
    return _event(invocation_id, event.author, types.Content(role="user", parts=parts), branch=event.branch, **more)


def abort_event(turn: AdkTurn, author: str, content: types.Content | None = None) -> Event:
    """Return the event that ends a stopped turn, with what its author had said."""
    turn.invocation_id = turn.invocation_id or f"e-{uuid.uuid4()}"
    return _event(turn.invocation_id, author, content)


def _event(invocation_id: str, author: str, content: types.Content | None, **more: Any) -> Event:
    return Event(
        invocation_id=invocation_id,
        author=author,
        content=content,
        error_code=CODE,
        error_message=MESSAGE,
        interrupted=True,
        **more,
    )


_RECENT = 10
_BROKEN = frozenset({Status.STOPPED, Status.LOST, Status.FAILED})

_unsealed: weakref.WeakKeyDictionary[Any, dict[str, list[AdkTurn]]] = weakref.WeakKeyDictionary()
"""The turns of this process whose end is not in their session, by session service and session."""


def remember(runner: Runner, user_id: str, session_id: str, turn: AdkTurn) -> None:
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
    await retry_write(lambda: _answer_calls(runner, user_id, session_id, arguments.get("new_message")))


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
    await settle(service)
    session = await service.get_session(app_name=runner.app_name, user_id=user_id, session_id=session_id)
    if session is None:
        return
    excluded_ids = answered_in(session.events)
    excluded_ids.update(
        part.function_response.id for part in (message and message.parts) or [] if part.function_response
    )
    for event in session.events:
        excluded_ids.update(event.long_running_tool_ids or ())
        excluded_ids.add(getattr(event, "isolation_scope", None) or "")  # the call of a task that goes on
    for event in list(session.events):
        results = [(call, {"error": NOT_KNOWN}) for call in event.get_function_calls() if call.id not in excluded_ids]
        if results:
            await service.append_event(session=session, event=answer(event.invocation_id, event, results))

"""The end of a stopped turn in its session: every call has an answer, and what was said is kept."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.events.event import Event
from google.adk.runners import Runner
from google.genai import types

from stoppable.adapters.adk.turn import UNFINISHED, Turn

CODE = "INVOCATION_ABORTED"
"""What google-adk 2.11 and later put into the events of an aborted invocation."""

MESSAGE = "The run was stopped."
NOT_BEGUN = "The run was stopped before this call began: it had no effect."
MAY_HAVE_HAPPENED = "The run was stopped while this call was in flight: it may have taken effect."

_PAUSES = (0.01, 0.04, 0.16, 0.64)


async def seal(runner: Runner, user_id: str, session_id: str, turn: Turn, tell: Callable[[Event], None]) -> None:
    """Write the end of a stopped turn into its session, and tell the events that its reader does not have yet.

    It reads the session again, because the copy of the run is stale, and writes only what is missing, so that it can
    be repeated: an answer to each call that has none and the text that was streamed, or else one event
    ``INVOCATION_ABORTED``. A write that fails is repeated, because another turn of the session may have written too.
    """
    if turn.invocation_id is None:  # no agent had begun: nothing of it is in the session
        tell(aborted(turn, runner.agent.name))
        return
    await repeated(lambda: _seal(runner, user_id, session_id, turn, tell))


async def repeated(write: Callable[[], Awaitable[None]]) -> None:
    """Write something into a session, and again if that fails; session services have no common error."""
    for pause in _PAUSES:
        try:
            return await write()
        except Exception:
            await asyncio.sleep(pause)
    return await write()


async def _seal(runner: Runner, user_id: str, session_id: str, turn: Turn, tell: Callable[[Event], None]) -> None:
    service, author = runner.session_service, runner.agent.name
    session = await service.get_session(app_name=runner.app_name, user_id=user_id, session_id=session_id)
    if session is None:
        tell(aborted(turn, author))
        return
    mine = [event for event in session.events if event.invocation_id == turn.invocation_id]
    ends = [event for event in mine if event.error_code == CODE]
    answers = _answers(turn, session.events, mine)
    for event in ends:
        if event.id not in turn.told:
            tell(event)
    for event in answers:
        tell(await service.append_event(session=session, event=event))
    is_new = not answers and not ends
    for speaker in [one for one, text in turn.said.items() if text]:
        content = types.Content(role="model", parts=[types.Part(text=turn.said[speaker])])
        event = await service.append_event(session=session, event=aborted(turn, speaker, content))
        del turn.said[speaker]
        tell(event)
        is_new = False
    if is_new:
        tell(await service.append_event(session=session, event=aborted(turn, author)))


def _answers(turn: Turn, events: list[Any], mine: list[Any]) -> list[Event]:
    """Answer the calls of a turn that have no answer, those of one event in one.

    A call that a human confirmed was made in an earlier turn, whose answer says only that it waits.
    """
    last_message = max((place for place, event in enumerate(mine) if event.author == "user"), default=0)
    answered_ids = (answered_in(mine) - turn.calls.keys()) | answered_in(mine[last_message:])
    assert turn.invocation_id is not None, "its agent has begun"
    answers = []
    for event in events:
        is_mine = event.invocation_id == turn.invocation_id
        calls = [call for call in event.get_function_calls() if is_mine or call.id in turn.calls]
        results = [(call, _result(turn, call.id)) for call in calls if call.id not in answered_ids]
        if results:
            answers.append(answer(turn.invocation_id, event, results))
    return answers


def answered_in(events: list[Any]) -> set[str]:
    """Return the ids of the calls that have an answer among some events."""
    return {response.id for event in events for response in event.get_function_responses()}


def _result(turn: Turn, call_id: str) -> Any:
    if call_id not in turn.calls:
        return {"error": NOT_BEGUN}
    result = turn.calls[call_id]
    return {"error": MAY_HAVE_HAPPENED} if result is UNFINISHED else result


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


def aborted(turn: Turn, author: str, content: types.Content | None = None) -> Event:
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

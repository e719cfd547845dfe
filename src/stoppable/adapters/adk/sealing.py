"""The end of a stopped turn in its session: every call has an answer, and what was said is kept."""

from __future__ import annotations

import uuid
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


async def seal(runner: Runner, user_id: str, session_id: str, turn: Turn) -> list[Any]:
    """Write the end of a stopped turn into its session, and return the events that its reader does not have yet.

    It reads the session again, because the copy of the run is stale, and writes only what is missing, so that it can
    be repeated: an answer to each call that has none and the text that was streamed, or else one event
    ``INVOCATION_ABORTED``.
    """
    if turn.invocation_id is None:  # no agent had begun: nothing of it is in the session
        return [_event(turn, runner.agent.name)]
    service, names = runner.session_service, {"user_id": user_id, "session_id": session_id}
    session = await service.get_session(app_name=runner.app_name, **names)
    if session is None:
        return [_event(turn, runner.agent.name)]
    mine = [event for event in session.events if event.invocation_id == turn.invocation_id]
    made = [*_answers(turn, mine), *_texts(turn)]
    ends = [event for event in mine if event.error_code == CODE]
    if not made and not ends:
        made.append(_event(turn, runner.agent.name))
    made = [await service.append_event(session=session, event=event) for event in made]
    turn.said.clear()
    return [event for event in ends if event.id not in turn.told] + made


def _answers(turn: Turn, events: list[Any]) -> list[Event]:
    """Answer the calls that have no answer, those of one event in one."""
    answered = {response.id for event in events for response in event.get_function_responses()}
    made = []
    for event in events:
        open_calls = [call for call in event.get_function_calls() if call.id not in answered]
        if open_calls:
            parts = [types.Part(function_response=_answer(turn, call)) for call in open_calls]
            scope = getattr(event, "isolation_scope", None)
            more = {} if scope is None else {"isolation_scope": scope}
            made.append(
                _event(turn, event.author, types.Content(role="user", parts=parts), branch=event.branch, **more)
            )
    return made


def _answer(turn: Turn, call: Any) -> types.FunctionResponse:
    if call.id not in turn.calls:
        told: Any = {"error": NOT_BEGUN}
    elif (result := turn.calls[call.id]) is UNFINISHED:
        told = {"error": MAY_HAVE_HAPPENED}
    else:  # it has finished, and the stop came before its answer was written
        told = result if isinstance(result, dict) else {"result": result}
    return types.FunctionResponse(id=call.id, name=call.name, response=told)


def _texts(turn: Turn) -> list[Event]:
    """Keep the text that was streamed, which ADK writes down only when a stream has ended."""
    return [
        _event(turn, author, types.Content(role="model", parts=[types.Part(text=text)]))
        for author, text in turn.said.items()
        if text
    ]


def _event(turn: Turn, author: str, content: types.Content | None = None, **more: Any) -> Event:
    turn.invocation_id = turn.invocation_id or f"e-{uuid.uuid4()}"
    return Event(
        invocation_id=turn.invocation_id,
        author=author,
        content=content,
        error_code=CODE,
        error_message=MESSAGE,
        interrupted=True,
        **more,
    )

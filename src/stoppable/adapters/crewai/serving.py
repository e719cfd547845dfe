"""Crews, agents and flows of CrewAI as agents of stoppable, for `stoppable serve`, `run` and `check`."""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from crewai import Agent, Crew
from crewai.types.streaming import StreamingOutputBase, StreamSessionBase

import stoppable
from stoppable.adapters.crewai import names
from stoppable.adapters.crewai.patches import install

_LOOK_SECONDS = 0.05


def as_agent(value: Any, name: str | None = None) -> Callable[..., Any]:
    """Return an agent whose result is what the crew, agent or flow returns; its partial is the text so far.

    The parameters of a crew are the inputs that its tasks and agents name in braces; each run has a copy of the crew.
    An agent has the parameters ``message`` and ``session_id``: messages with the same session id are turns of one
    conversation, one after the other, which is kept in this process, apart for each owner of runs. A flow has the
    parameter ``inputs``, and takes one run at a time.
    """
    install()
    own_name = str(getattr(value, "name", None) or getattr(value, "role", None) or type(value).__name__).strip()
    if isinstance(value, Crew):
        agent = _of_crew(value)
    elif isinstance(value, Agent):
        agent = _of_agent(value)
    elif isinstance(value, names.FLOW):
        agent = _of_flow(value)
    else:
        raise TypeError(f"{type(value).__name__} is not an agent: pass a Crew, an Agent or a Flow of CrewAI")
    agent.__name__ = agent.__qualname__ = name or own_name
    agent.__doc__ = f"The {type(value).__name__} {own_name}."
    return stoppable.agent(agent)


def _of_crew(crew: Crew) -> Callable[..., Any]:
    placeholders = sorted(filter(str.isidentifier, crew.fetch_inputs()))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    # A callback of the crew may set an input that is not given; CrewAI says which one is missing.
    signature = inspect.Signature([inspect.Parameter(each, kind, default=None) for each in placeholders])

    def kick_off(*args: Any, **kwargs: Any) -> Any:
        inputs = signature.bind(*args, **kwargs).arguments
        return _plain(_complete(crew.copy().kickoff(inputs=inputs)))  # what a crew has done is kept in it

    kick_off.__signature__ = signature  # type: ignore[attr-defined]
    return kick_off


def _of_agent(agent: Agent) -> Callable[..., Any]:
    conversations = _Conversations(agent)

    def answer(message: str, session_id: str | None = None) -> Any:
        return conversations.get(session_id).answer(message)

    return answer


def _of_flow(flow: Any) -> Callable[..., Any]:
    lock = threading.Lock()

    def kick_off(inputs: dict[str, Any] | None = None) -> Any:
        with _held(lock):
            return _plain(_complete(flow.kickoff(inputs=inputs)))

    return kick_off


class _Conversation:
    """An agent of its own, and what was said; CrewAI keeps nothing from one kickoff to the next."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent.copy()
        self._messages: list[dict[str, Any]] = []
        self._turn = threading.Lock()

    def answer(self, message: str) -> Any:
        """Return the answer to a message."""
        with _held(self._turn):
            messages: list[Any] = [*self._messages, {"role": "user", "content": message}]
            names.set_last_messages(self._agent, [])
            try:
                result: Any = self._agent.kickoff(messages)
            except stoppable.AgentStopped:
                self._keep(messages, self._agent.last_messages)
                raise
            # The last answer of a stream is only in the result.
            last = [] if _ends_with_an_answer(result.messages) else [{"role": "assistant", "content": result.raw}]
            self._keep(messages, [*result.messages, *last])
            return _plain(result)

    def _keep(self, sent: list[Any], messages: list[Any]) -> None:
        """Keep the messages of a turn: what CrewAI was sent, and what it has added, but not its instructions."""
        said = [message for message in messages if message["role"] != "system"]
        if len(said) >= len(sent):
            self._messages = [*sent, *said[len(sent) :]]
        elif said:  # it has written a summary of them
            self._messages = said


def _ends_with_an_answer(messages: list[Any]) -> bool:
    return bool(messages) and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")


class _Conversations:
    """The conversations of this process; the same id of two owners means two conversations."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._kept: dict[tuple[str | None, str], _Conversation] = {}

    def get(self, session_id: str | None) -> _Conversation:
        if session_id is None:
            return _Conversation(self._agent)
        run = stoppable.current_run()
        key = (None if run is None else run.owner, session_id)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = _Conversation(self._agent)
            return self._kept[key]


@contextlib.contextmanager
def _held(lock: threading.Lock) -> Iterator[None]:
    """Hold a lock in the block; a stop ends the wait for it."""
    while not lock.acquire(timeout=_LOOK_SECONDS):
        stoppable.check()
    try:
        yield
    finally:
        lock.release()


def _complete(result: Any) -> Any:
    """Return a result, after reading the stream that it comes in."""
    if isinstance(result, StreamingOutputBase | StreamSessionBase):
        for _ in result:
            pass
        return result.result
    return result


def _plain(result: Any) -> Any:
    """Return an answer as plain JSON."""
    if (structured := getattr(result, "pydantic", None)) is not None:
        result = structured
    elif (structured := getattr(result, "json_dict", None)) is not None:
        return structured
    elif isinstance(text := getattr(result, "raw", None), str):
        return text
    if hasattr(result, "model_dump"):
        return result.model_dump(mode="json")
    return json.loads(json.dumps(result, default=str))

"""Patches the classes of OpenHands, because it replaces agents, models and tools while a conversation lives."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from openhands.sdk.agent.parallel_executor import ParallelToolExecutor
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.conversation.state import ConversationExecutionStatus
from openhands.sdk.llm import LLM

import stoppable
from stoppable import sync
from stoppable.adapters._upstream import require
from stoppable.adapters.openhands import calls, conversations, names, terminals
from stoppable.adapters.openhands.conversations import (
    Background,
    ConversationSettings,
    Supervised,
    current_turn,
    keep,
    of,
    refuse_pending,
    supervise_all,
)

C = TypeVar("C")

_lock = threading.Lock()
_is_active = False


def supervise(
    conversation: C,
    supervisor: stoppable.Supervisor | sync.Supervisor | None = None,
    *,
    background: Background = "end",
    owner: str | None = None,
    labels: Mapping[str, str] | None = None,
    limits: stoppable.Limits | None = None,
    policy: stoppable.Policy | None = None,
) -> C:
    """Make every ``arun()`` and ``run()`` of a conversation a run that can be stopped, and return the conversation.

    With a supervisor the runs are kept in its store, and stopped by the key ``openhands:<id of the conversation>`` or
    by their id; without one, ``conversation.interrupt()`` and ``run_of(conversation).stop(…)`` stop them. A stop ends
    the commands that the run has started in its terminals; with ``background="keep"`` those in the background go on.
    """
    if not isinstance(conversation, LocalConversation):
        raise stoppable.InvalidArgument(
            f"{type(conversation).__name__} runs in another process: call stoppable.adapters.openhands.install() in "
            "that one, and interrupt() here"
        )
    settings = _settings(supervisor, background, owner, labels, limits, policy)
    activate()
    keep(conversation, Supervised(settings)).settings = settings
    return conversation


def install(
    supervisor: stoppable.Supervisor | sync.Supervisor | None = None,
    *,
    background: Background = "end",
    owner: str | None = None,
    labels: Mapping[str, str] | None = None,
    limits: stoppable.Limits | None = None,
    policy: stoppable.Policy | None = None,
) -> None:
    """Do what ``supervise`` does for every conversation of this process, also those of agent-server."""
    settings = _settings(supervisor, background, owner, labels, limits, policy)
    activate()
    supervise_all(settings)


def run_of(conversation: Any) -> stoppable.Run | None:
    """Return the newest run of a conversation, which may be over."""
    supervised = of(conversation)
    return None if supervised is None else supervised.run


def tool_calls(conversation: Any) -> dict[str, stoppable.Run]:
    """Return the tool calls that are executed now, by the id that the model gave them: each can be stopped alone."""
    supervised = of(conversation)
    return {} if supervised is None else {identity: call.run for identity, call in list(supervised.calls.items())}


def _settings(
    supervisor: Any, background: Background, owner: Any, labels: Any, limits: Any, policy: Any
) -> ConversationSettings:
    if background not in {"end", "keep"}:
        raise stoppable.InvalidArgument(f"unknown background {background!r}: use end or keep")
    return ConversationSettings(
        supervisor=supervisor, background=background, owner=owner, labels=labels, limits=limits, policy=policy
    )


def activate() -> None:
    """Wrap the methods of OpenHands, once; nothing changes for unsupervised conversations."""
    global _is_active
    with _lock:
        if _is_active:
            return
        require("openhands-sdk", names.missing())
        for owner, wrappers in _WRAPPERS.items():
            for name, wrapper in wrappers.items():
                setattr(owner, name, wrapper(getattr(owner, name)))
        LocalConversation.cancel_token = property(_cancel_token(LocalConversation.cancel_token))
        if names.TERMINAL_SESSION is not None:
            names.TERMINAL_SESSION.execute = terminals.execute(names.TERMINAL_SESSION.execute)
            terminals.mark_shells()
        calls.wrap_mcp_client()
        _is_active = True


def _arun(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    async def arun(self: Any) -> None:
        supervised = of(self)
        await (plain(self) if supervised is None else conversations.arun(self, supervised, plain))

    return arun


def _run(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def run(self: Any) -> None:
        supervised = of(self)
        if supervised is None:
            plain(self)
        else:
            conversations.run(self, supervised, plain)

    return run


def _interrupt(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def interrupt(self: Any, mode: str = "immediate", reason: str = "interrupt()") -> None:
        supervised = of(self)
        if supervised is None:
            plain(self)
            return
        status = self.state.execution_status
        if supervised.interrupt(status, mode, reason):
            if mode in {"immediate", "kill"}:
                names.cancel_token(self)
            return
        if self.state.acquire(blocking=False):
            try:
                refuse_pending(self, reason)
                self.pause()
            finally:
                self.state.release()
        elif status is ConversationExecutionStatus.WAITING_FOR_CONFIRMATION:
            supervised.interrupt_next()  # it refuses what is pending then

    return interrupt


def _pause(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def pause(self: Any) -> None:
        supervised = of(self)
        if supervised is not None:
            supervised.note_pause()
        plain(self)

    return pause


def _send_message(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def send_message(self: Any, *args: Any, **kwargs: Any) -> Any:
        supervised = of(self)
        if supervised is not None:
            supervised.note_message()
        return plain(self, *args, **kwargs)

    return send_message


def _init(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in _CALLBACKS:
            kwargs |= {name: [_detach(callback) for callback in kwargs[name]]} if kwargs.get(name) else {}
        plain(self, *args, **kwargs)
        of(self)  # in a run, it belongs to the tool call that makes it

    return init


_CALLBACKS = ("callbacks", "token_callbacks", "stream_callbacks")


def _detach(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Run a callback of a conversation outside its run: a server sends events in tasks that must not end with it."""
    if inspect.iscoroutinefunction(callback):
        return callback

    def call_detached(*args: Any, **kwargs: Any) -> Any:
        with stoppable.detached():
            return callback(*args, **kwargs)

    return call_detached


def _cancel_token(plain: property) -> Callable[[Any], Any]:
    def cancel_token(self: Any) -> Any:
        supervised = of(self)
        return plain.__get__(self) if supervised is None else supervised.token()

    return cancel_token


def _aexecute_batch(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    async def aexecute_batch(
        self: Any,
        action_events: Any,
        tool_runner: Any,
        tools: Any = None,
        cancel_token: Any = None,
        span_owner: Any = None,
    ) -> Any:
        if current_turn.get() is None or span_owner is None:
            return await plain(self, action_events, tool_runner, tools, cancel_token, span_owner)
        return await calls.aexecute(self, action_events, tool_runner, tools, span_owner)

    return aexecute_batch


def _execute_batch(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def execute_batch(
        self: Any,
        action_events: Any,
        tool_runner: Any,
        tools: Any = None,
        cancel_token: Any = None,
        span_owner: Any = None,
    ) -> Any:
        if current_turn.get() is None or span_owner is None:
            return plain(self, action_events, tool_runner, tools, cancel_token, span_owner)
        return calls.execute(self, action_events, tool_runner, tools, span_owner)

    return execute_batch


def _generate(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if stoppable.current_run() is None:
            return plain(self, *args, **kwargs)
        with stoppable.boundary("llm", self.model), calls.model_call(), stoppable.detached():  # as in agenerate
            return plain(self, *args, **kwargs)

    return generate


def _agenerate(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    async def agenerate(self: Any, *args: Any, **kwargs: Any) -> Any:
        if stoppable.current_run() is None:
            return await plain(self, *args, **kwargs)
        async with stoppable.boundary("llm", self.model):
            with (
                calls.model_call(),
                stoppable.detached(),
            ):  # clients start tasks there that serve all later calls of the process
                return await plain(self, *args, **kwargs)

    return agenerate


_WRAPPERS: dict[Any, dict[str, Callable[[Any], Any]]] = {
    LocalConversation: {
        "__init__": _init,
        "arun": _arun,
        "run": _run,
        "interrupt": _interrupt,
        "pause": _pause,
        "send_message": _send_message,
    },
    ParallelToolExecutor: {"execute_batch": _execute_batch, "aexecute_batch": _aexecute_batch},
    LLM: {"generate": _generate, "agenerate": _agenerate, "retry_decorator": calls.retry_decorator},
}

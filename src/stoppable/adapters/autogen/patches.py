"""Agents, model calls, tools and teams of AutoGen as parts of the run that calls them.

An agent executes the tools that its model asks for in tasks of their own, and waits until all of them have answered:
one that raises what is no ``Exception`` leaves it waiting for ever. So a tool that a stop has refused or cut answers,
and the agent's next model call raises. A team executes each turn of a participant in a task, and waits for a message
that says who speaks next. So a participant that was stopped responds with what it has, and its manager ends the team.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import CancellationToken, MessageHandlerContext
from autogen_core.models import ChatCompletionClient

import stoppable
from stoppable import Run
from stoppable.adapters._upstream import require, wrap
from stoppable.adapters.autogen import names, tokens
from stoppable.adapters.autogen.tokens import RunToken, token_for
from stoppable.adapters.autogen.turns import AgentTurn, last_words

_ENDS = (stoppable.AgentStopped, asyncio.CancelledError, Exception)
"""How what a stop has refused or cut ends; an error may be its consequence, such as a connection that was closed."""


def install() -> None:
    """Let the stop of a run reach every agent and team that is called in it; once per process.

    Model calls, tools and the turns of a team's participants are boundaries. A ``CancellationToken`` stops the run that
    it is used in. Threads and processes that tools start belong to their run, as with ``stoppable.instrument()``.
    Outside a run everything works as before.
    """
    require("autogen-agentchat", names.missing())
    stoppable.instrument()
    wrap(CancellationToken, "cancel", tokens.cancel)
    wrap(AssistantAgent, "on_messages_stream", _on_messages_stream)
    wrap(AssistantAgent, "_execute_tool_call", _execute_tool_call)
    wrap(BaseGroupChat, "run_stream", _run_stream)
    wrap(names.ACTOR, "on_message_impl", _on_message_impl)
    wrap(names.MANAGER, "_transition_to_next_speakers", _transition_to_next_speakers)


# Agents


def _on_messages_stream(real: Callable[..., Any]) -> Callable[..., Any]:
    def on_messages_stream(self: Any, messages: Any, cancellation_token: Any) -> Any:
        run = stoppable.current_run()
        if run is None:
            return real(self, messages, cancellation_token)
        _guard_models()
        return _answer(real, run, self, messages, cancellation_token)

    return on_messages_stream


async def _answer(real: Callable[..., Any], run: Run, agent: Any, messages: Any, given: Any) -> AsyncGenerator[Any]:
    turn = AgentTurn(agent, is_internal=isinstance(given, RunToken) and given.turn is not None)
    response = None
    with token_for(run, given, turn) as token:
        try:
            await turn.open(agent)
            async with contextlib.aclosing(real(agent, messages, token)) as events:
                async for event in events:
                    turn.note(event)
                    if isinstance(event, Response):
                        response = event
                    else:
                        yield event
        except BaseException:
            await turn.complete()
            raise
    if response is not None:
        yield response  # the last one: AutoGen reads no further, so nothing may be left to do


def _guard_models() -> None:
    """Make the model calls of all clients boundaries; done at the call, because more of them may have been imported."""
    for kind in names.subclasses(ChatCompletionClient):
        for method in ("create", "create_stream"):
            if inspect.isfunction(vars(kind).get(method)):
                if method == "create_stream":
                    wrap(kind, method, _create_stream)
                stoppable.guard(kind, "llm", method, name=names.model_name)


def _create_stream(real: Callable[..., Any]) -> Callable[..., Any]:
    """End the request of a stream with the stream: clients leave that to the garbage collector."""

    def create_stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        pieces = real(self, *args, **kwargs)
        return pieces if stoppable.current_run() is None else _read(pieces)

    return create_stream


async def _read(pieces: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    async with contextlib.aclosing(pieces):
        try:
            async for piece in pieces:
                yield piece
        except GeneratorExit:
            await _cut(pieces)
            raise


_TURNS_OF_THE_LOOP = 3


async def _cut(pieces: AsyncGenerator[Any]) -> None:
    """Cancel the stream of a client while it waits for its connection, because then it closes that."""
    is_over = False
    while not is_over:  # what has arrived already is read without waiting
        reading = asyncio.ensure_future(anext(pieces))
        for _ in range(_TURNS_OF_THE_LOOP):  # the client reads in a task
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        is_over = reading.cancelled() or reading.exception() is not None


def _execute_tool_call(real: Callable[..., Any]) -> Callable[..., Any]:
    async def execute_tool_call(tool_call: Any, *args: Any, cancellation_token: Any, **kwargs: Any) -> Any:
        turn = cancellation_token.turn if isinstance(cancellation_token, RunToken) else None
        if turn is None:
            return await real(tool_call, *args, cancellation_token=cancellation_token, **kwargs)
        try:
            async with stoppable.boundary("tool", tool_call.name):
                with turn.executing(tool_call.id):
                    call, result = await real(tool_call, *args, cancellation_token=cancellation_token, **kwargs)
                    turn.finish(tool_call.id, result)
                    return call, result
        except _ENDS:
            if not cancellation_token.run.token.stopped:
                raise
            return tool_call, turn.result_of(tool_call)

    return execute_tool_call


# Teams


def _run_stream(real: Callable[..., Any]) -> Callable[..., Any]:
    def run_stream(self: Any, *, cancellation_token: Any = None, **options: Any) -> Any:
        run = stoppable.current_run()
        if run is None:
            return real(self, cancellation_token=cancellation_token, **options)
        _guard_models()
        return _perform(real, run, self, cancellation_token, options)

    return run_stream


async def _perform(
    real: Callable[..., Any], run: Run, team: Any, given: Any, options: dict[str, Any]
) -> AsyncGenerator[Any]:
    with token_for(run, given) as token:
        try:
            async with contextlib.aclosing(real(team, cancellation_token=token, **options)) as events:
                async for event in events:
                    if isinstance(event, TaskResult) and event.stop_reason == names.STOPPED:
                        stoppable.check()
                    yield event
        except asyncio.CancelledError:
            if run.token.stopped:
                await names.until_ended(team)
            raise
        except Exception:
            stoppable.check()  # it may be a consequence of the stop
            raise


def _on_message_impl(real: Callable[..., Any]) -> Callable[..., Any]:
    async def on_message_impl(self: Any, message: Any, ctx: Any) -> Any:
        token, run = ctx.cancellation_token, stoppable.current_run()
        if run is None and isinstance(token, RunToken):  # the runtime was started outside the run

            async def in_run() -> Any:
                with MessageHandlerContext.populate_context(self.id):
                    return await on_message_impl(self, message, ctx)

            return await asyncio.create_task(in_run(), context=token.context.copy())
        if run is None:
            return await real(self, message, ctx)
        if names.is_request(self, message):
            return await _take_turn(real, run, self, message, ctx)
        try:
            return await real(self, message, ctx)
        except _ENDS:
            if not (run.token.stopped and isinstance(self, names.MANAGER)):
                raise
            await names.end_team(self)

    return on_message_impl


async def _take_turn(real: Callable[..., Any], run: Run, container: Any, message: Any, ctx: Any) -> Any:
    """Let a participant of a team take its turn; if a stop ends it, the others learn what it has done."""
    participant = names.participant_of(container)
    has_begun = False
    try:
        async with stoppable.boundary("node", participant.name):
            has_begun = True
            return await real(container, message, ctx)
    except _ENDS:
        if not run.token.stopped:
            raise
        said = last_words(participant, has_begun=has_begun)
        await names.respond(container, said, ctx.cancellation_token, has_begun=has_begun)


def _transition_to_next_speakers(real: Callable[..., Any]) -> Callable[..., Any]:
    async def transition_to_next_speakers(self: Any, cancellation_token: Any) -> None:
        if stoppable.should_stop():
            await names.end_team(self)
        else:
            await real(self, cancellation_token)

    return transition_to_next_speakers

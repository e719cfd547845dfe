"""An agent for editors that speak ACP: a session is a conversation, a prompt is a run, ``session/cancel`` is a stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeAlias

import acp
from acp import schema

import stoppable
from stoppable import Mode, Policy, Reason, ReasonKind, StoppableError
from stoppable.adapters.acp import wire
from stoppable.records import Filter, RunRecord
from stoppable.server import Host, Principal
from stoppable.server.backend import Backend
from stoppable.server.responses import Problem, dumps, problem_of
from stoppable.server.surfaces.ends import End, Said
from stoppable.server.surfaces.inputs import arguments_of
from stoppable.server.surfaces.surface import POLICY, Surface

_logger = logging.getLogger("stoppable.server")

Handler: TypeAlias = Callable[..., Awaitable[Any]]

_LOCAL = Principal(sees_all=True, actor="local")
_PRESSES = (Mode.GRACEFUL, Mode.IMMEDIATE, Mode.KILL)
_WRONG_PARAMS = {404, 422}
_LEAVE_SECONDS = 2.0
_NAMES = {"conversation_id", "session_id", "thread_id", "cwd"}  # arguments that the user has not typed


def _spelled(handle: Handler) -> Handler:
    """Return a handler whose errors are those of the protocol."""

    @functools.wraps(handle)
    async def answer(*args: Any, **params: Any) -> Any:
        try:
            return await handle(*args, **params)
        except StoppableError as error:
            raise _error(problem_of(error, to_operator=True)) from None
        except Problem as problem:
            raise _error(problem) from None

    return answer


def _error(problem: Problem) -> Exception:
    code = wire.INVALID_PARAMS if problem.status_code in _WRONG_PARAMS else wire.INVALID_REQUEST
    error: Exception = acp.RequestError(code, problem.detail, {"code": problem.code, "status": problem.status_code})
    return error


@dataclass(slots=True)
class _Session:
    """A session, and how often each of its turns at work was cancelled, by the id of its run."""

    id: str
    cwd: str
    turns: dict[str, int] = field(default_factory=dict)


class ServedAgent:
    """An agent as the clients of the protocol see it; its methods have the names that the package calls."""

    def __init__(self, host: Host, name: str, policy: Policy = POLICY) -> None:
        self._supervisor = host.supervisor
        self._surface = Surface(host, "acp", policy)
        self._name = name
        self._signature = self._surface.signature(name)
        self._sessions: dict[str, _Session] = {}
        self._client: Any = None

    def on_connect(self, client: Any) -> None:
        """Keep the connection, for updates."""
        self._client = client

    async def initialize(self, protocol_version: int, **_: Any) -> Any:  # noqa: ARG002 - there is one version
        """Say what this agent can do."""
        return schema.InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_capabilities=schema.AgentCapabilities(
                load_session=True, prompt_capabilities=schema.PromptCapabilities(embedded_context=True)
            ),
            agent_info=schema.Implementation(name=self._name, version=stoppable.__version__),
        )

    async def new_session(self, cwd: str, **_: Any) -> Any:
        """Open a session."""
        session = _Session(uuid.uuid4().hex, cwd)
        self._sessions[session.id] = session
        return schema.NewSessionResponse(session_id=session.id)

    @_spelled
    async def load_session(self, cwd: str, session_id: str, **_: Any) -> Any:
        """Open a session that has been here before, and show what was said in it, also in turns that were stopped."""
        known = session_id in self._sessions
        turns = [turn async for turn in self._past_turns(session_id)] if wire.is_session(session_id) else []
        if not turns and not known:
            raise acp.RequestError(wire.NOT_FOUND, f"no session {session_id!r:.150}")
        if known:
            self._sessions[session_id].cwd = cwd
        else:
            self._sessions[session_id] = _Session(session_id, cwd)
        for question, end in turns:
            if question:
                await self._update(session_id, acp.update_user_message_text(question))
            await self._say(session_id, end.text)
        return schema.LoadSessionResponse()

    @_spelled
    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> Any:
        """Start a run, show what it says, and answer once it has ended with everything it started."""
        session = self._sessions.get(session_id)
        if session is None:
            raise acp.RequestError(wire.NOT_FOUND, f"no session {session_id!r:.150}: send session/new first")
        text = wire.text_of(prompt)
        run_id = uuid.uuid4().hex
        session.turns[run_id] = 0
        try:
            return await self._turn(session, run_id, text)
        finally:
            del session.turns[run_id]

    async def _turn(self, session: _Session, run_id: str, text: str) -> Any:
        place = 0

        async def arguments() -> Any:
            nonlocal place
            place = await self._surface.place()
            return await self._arguments(session, text)

        record = await self._surface.begin(
            _LOCAL, self._name, make_arguments=arguments, run_id=run_id, conversation=session.id
        )
        said, tools = Said(is_generator=self._surface.agents.is_generator(self._name)), wire.ToolCalls()
        async for event in self._supervisor.events(record.id, place, tree=True):
            if event.run_id == record.id:
                await self._say(session.id, said.take(event))
            await self._update(session.id, tools.take(event))
        end = await self._end(await self._surface.record(record.id, _LOCAL), said)
        await self._say(session.id, said.missing(end.text))
        for update in tools.rest(end):
            await self._update(session.id, update)
        return wire.response(end)

    async def _end(self, record: RunRecord, said: Said) -> End:
        return End.of(record, said.text if said.is_generator else None)

    async def _arguments(self, session: _Session, text: str) -> Any:
        """Return the arguments of a turn; an agent that takes messages gets those of the turns before it too."""
        messages = []
        if self._signature.takes("messages"):
            async for question, end in self._past_turns(session.id):
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": end.text}]
        messages.append({"role": "user", "content": text})
        arguments = arguments_of(self._signature, text, messages, session.id)
        if isinstance(arguments, dict) and self._signature.takes("cwd"):
            arguments = {"cwd": session.cwd, **arguments}
        return arguments

    async def _past_turns(self, session_id: str) -> AsyncIterator[tuple[str, End]]:
        """Yield what was asked and answered in the turns of a session that have ended, oldest first."""
        run_ids: list[str] = []
        cursor, matching = None, Filter(key=self._surface.key(session_id), roots=True)
        while True:
            page = await self._supervisor.list(matching, cursor=cursor)
            run_ids += [run.id for run in page.runs if run.over and run.owner is None]
            cursor = page.cursor
            if cursor is None:
                break
        for run_id in reversed(run_ids):
            record = await self._supervisor.get(run_id)
            end = await self._surface.end(record)
            if end is not None:
                yield self._question(record), end

    def _question(self, record: RunRecord) -> str:
        """Return what was asked in a turn, from its arguments; nothing if they are not kept."""
        typed = {name: value for name, value in (record.input or {}).items() if name not in _NAMES}
        match typed:
            case {"messages": [*_, {"content": str(text)}]}:
                return text
            case _ if not typed:
                return ""
            case _ if [*typed] == [self._signature.first] and isinstance(text := typed[self._signature.first], str):
                return text
        return dumps(typed).decode()

    async def _say(self, session_id: str, text: str) -> None:
        await self._update(session_id, acp.update_agent_message_text(text) if text else None)

    async def _update(self, session_id: str, update: Any) -> None:
        if update is not None:
            with contextlib.suppress(ConnectionError):  # the client has left, which stops the turn
                await self._client.session_update(session_id, update)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the turn of a session, the next time harder; one that is about to begin is stopped before it does."""
        session = self._sessions.get(session_id)
        if session is None:
            return  # a notification has no answer
        for run_id, presses in [*session.turns.items()]:
            session.turns[run_id] += 1
            mode = _PRESSES[min(presses, len(_PRESSES) - 1)]
            await self._stop(run_id, mode, Reason.of("the client cancelled the turn", source="acp"))

    async def leave(self) -> None:
        """Stop all turns, because the client has left."""
        reason = Reason.of("the client left", kind=ReasonKind.DISCONNECT, source="acp")
        stops = [self._stop(run_id, Mode.GRACEFUL, reason) for one in self._sessions.values() for run_id in one.turns]
        with contextlib.suppress(TimeoutError):  # a store that hangs: the shutdown stops them
            async with asyncio.timeout(_LEAVE_SECONDS):
                await asyncio.gather(*stops)

    async def _stop(self, run_id: str, mode: Mode, reason: Reason) -> None:
        try:
            await self._supervisor.stop(run_id, mode, reason, _LOCAL.actor, if_unknown="wait")
        except StoppableError as error:
            _logger.warning("run %s could not be stopped: %s", run_id, error)


async def serve_streams(backend: Backend, reading: BinaryIO, writing: BinaryIO, *, policy: Policy = POLICY) -> None:
    """Serve the agent of a backend to the client at the other end of two pipes, until it closes one.

    The connection is not closed then: that would cancel turns in the middle of a step, and the client has left.
    """
    [name] = backend.registry
    agent = ServedAgent(Host(backend), name, policy)
    lines = asyncio.StreamReader(limit=sys.maxsize)
    writer, end = await _writer(writing)
    connection = acp.AgentSideConnection(agent, writer, lines, listening=False)
    helpers = [asyncio.create_task(_receive(reading, lines, writer)), asyncio.create_task(_watch(end, lines))]
    try:
        await connection.listen()
        await agent.leave()
    finally:
        for helper in helpers:
            helper.cancel()


async def _writer(writing: BinaryIO) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
    """Return the writer of a pipe, and a reader that ends when the other end of the pipe is closed."""
    end, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(lambda: asyncio.StreamReaderProtocol(end), writing)
    return asyncio.StreamWriter(transport, protocol, None, loop), end


async def _watch(end: asyncio.StreamReader, lines: asyncio.StreamReader) -> None:
    """End the lines of a client that reads no answers any more."""
    with contextlib.suppress(OSError):
        await end.read()
    lines.feed_eof()


async def _receive(reading: BinaryIO, lines: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass the lines of a client on, and answer those that are no messages."""
    while line := await stoppable.to_thread(reading.readline):
        try:
            lines.feed_data(wire.check_line(line))
        except wire.WrongLine as error:
            writer.write(error.answer)
            await writer.drain()
    lines.feed_eof()

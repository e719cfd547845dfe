"""Agents of others as parts of a run: a command that speaks ACP executes the prompts.

A cancel of the protocol is a promise, and is not relied on. The agent is a process of the run: a turn is over when the
process and everything that it started are dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import acp
from acp import schema

import stoppable
from stoppable import InvalidArgument, Process

Allow: TypeAlias = bool | Callable[[Any], bool | Awaitable[bool]]

_MARGIN = 1.0  # for what an agent has said right before its end


def agent(
    command: str | Sequence[str],
    *,
    name: str | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    allow: Allow = False,
) -> Callable[[str], Awaitable[str]]:
    """Return an agent that gives its prompt to a command that speaks ACP, such as a coding agent, and returns its text.

    Each call starts the command. Called in a run, it is a child of it. A graceful stop sends ``session/cancel`` and
    waits for the answer; if that does not come in time, or with an immediate stop, the process is ended. The run is
    ``stopped`` when the process and everything that it started are dead, whatever the agent has answered.

    ``allow`` answers requests for permission: no by default, or what a function of the tool call says. ``cwd`` is the
    directory of the process and its session, ``env`` its whole environment.
    """
    words = shlex.split(command) if isinstance(command, str) else [*command]
    if not words:
        raise InvalidArgument("the command is empty: give the words that start an agent which speaks ACP")
    directory = Path.cwd() if cwd is None else Path(cwd).absolute()

    async def ask(prompt: str) -> str:
        async with _started(words, directory, env, allow) as turn:
            return await turn.ask(prompt, directory)

    return stoppable.agent(name=name or Path(words[0]).name)(ask)


@contextlib.asynccontextmanager
async def _started(
    words: Sequence[str], cwd: Path, env: Mapping[str, str] | None, allow: Allow
) -> AsyncIterator[_Turn]:
    """Start an agent and connect to it; leaving the block ends everything that the process has started."""
    their_input, our_output = os.pipe()
    our_input, their_output = os.pipe()
    with os.fdopen(our_output, "wb", 0) as writing, os.fdopen(our_input, "rb", 0) as reading:
        try:
            process = await stoppable.open_process(
                words, stdin=their_input, stdout=their_output, stderr=None, cwd=cwd, env=env
            )
        finally:
            os.close(their_input)
            os.close(their_output)
        async with process:
            turn = _Turn(process, Path(words[0]).name, allow)
            with stoppable.detached():  # a stop must not cut the way of the cancel
                await turn.connect(reading, writing)
            try:
                yield turn
            finally:
                await turn.close()


class _Turn:
    """A process that executes one prompt; its methods with public names are those that the package calls."""

    def __init__(self, process: Process[str], name: str, allow: Allow) -> None:
        self._process, self._name, self._allow = process, name, allow
        self._in_run = contextvars.copy_context()
        self._session: str | None = None
        self._text: list[str] = []

    async def connect(self, reading: Any, writing: Any) -> None:
        """Connect to the process by two pipes."""
        loop, lines, end = asyncio.get_running_loop(), asyncio.StreamReader(limit=sys.maxsize), asyncio.StreamReader()
        self._incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), reading)
        self._outgoing, protocol = await loop.connect_write_pipe(lambda: asyncio.StreamReaderProtocol(end), writing)
        writer = asyncio.StreamWriter(self._outgoing, protocol, None, loop)
        self._connection = acp.connect_to_agent(self, writer, lines)

    async def close(self) -> None:
        """End the connection; what waits to be written is dropped, because the agent is about to end."""
        if not self._outgoing.is_closing():
            self._outgoing.abort()
        with contextlib.suppress(Exception):  # the sender of the package has failed before
            async with asyncio.timeout(_MARGIN):
                await self._connection.close()
        self._incoming.close()

    async def ask(self, prompt: str, cwd: Path) -> str:
        """Send the prompt, and return the text of the answer."""
        hook = stoppable.on_stop(self._cancel)
        try:
            await self._answer(self._connection.initialize(protocol_version=acp.PROTOCOL_VERSION))
            session = await self._answer(self._connection.new_session(cwd=str(cwd), mcp_servers=[]))
            stoppable.check()
            self._session = session.session_id
            blocks = [acp.text_block(prompt)]
            answer = await self._answer(self._connection.prompt(session_id=self._session, prompt=blocks))
        finally:
            hook.remove()
        if answer.stop_reason == "cancelled":
            stoppable.check()
            raise RuntimeError(f"{self._name} has cancelled the turn without being asked to")
        return "".join(self._text)

    async def _answer(self, request: Awaitable[Any]) -> Any:
        """Return the answer to a request, or raise if the agent ends without one."""
        with stoppable.detached():
            answered = asyncio.ensure_future(request)
            exited = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({answered, exited}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({answered}, timeout=_MARGIN)  # it may have been the last thing that the agent has said
            if answered.done() and not isinstance(answered.exception(), ConnectionError):
                return answered.result()
            await asyncio.wait({exited}, timeout=_MARGIN)
            stoppable.check()
            code = self._process.returncode
            how = "has closed its output" if code is None else f"has ended with {code}"
            raise ConnectionError(f"{self._name} {how} before it answered")
        finally:
            for task in (answered, exited):
                task.cancel()
                task.add_done_callback(_read_error)

    async def _cancel(self) -> None:
        if self._session is not None:
            await self._connection.cancel(session_id=self._session)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:  # noqa: ARG002 - there is one
        """Keep the text that the agent says."""
        content: Any = getattr(update, "content", None)
        if update.session_update == "agent_message_chunk" and getattr(content, "type", None) == "text":
            self._text.append(content.text)
            self._in_run.run(stoppable.append_partial, content.text)

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **_: Any) -> Any:  # noqa: ARG002 - there is one
        """Answer whether the agent may do something; after a stop it may not."""
        is_allowed = False
        if not self._in_run.run(stoppable.should_stop):
            answer = self._allow(tool_call) if callable(self._allow) else self._allow
            is_allowed = bool(await answer if inspect.isawaitable(answer) else answer)
        kind = "allow_once" if is_allowed else "reject_once"
        option = next((one.option_id for one in options if one.kind == kind), None)
        if option is None or self._in_run.run(stoppable.should_stop):
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        outcome = schema.AllowedOutcome(outcome="selected", option_id=option)
        return schema.RequestPermissionResponse(outcome=outcome)


def _read_error(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs it as never retrieved

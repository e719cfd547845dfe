"""Tool calls of MCP clients as nodes of the tree.

A cancel of MCP is never answered, so the fate of a call that was cancelled is ``told``, unless the server has this
adapter too: it says how the call ended.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types
from mcp.shared.exceptions import MCPError

import stoppable
from stoppable import Fate, Mode, RemoteNode, RemoteStop
from stoppable.adapters._upstream import require
from stoppable.adapters.mcp import messages, names

_ANSWER_SECONDS = 3.0
_NO_ANSWER = (mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT)
_FINISHED = messages.CallStopAnswer(status=stoppable.Status.COMPLETED, fate=Fate.FINISHED)


def install() -> None:
    """Make the tool calls of all MCP clients of this process parts of the runs that make them.

    That is ``ClientSession.call_tool`` of the package ``mcp``, by which the clients of FastMCP and of agent frameworks
    call tools. Outside a run it does what it always did. Calling this again does nothing.
    """
    require("mcp", names.missing())
    session, transport = names.CLIENT_SESSION, names.HTTP_TRANSPORT
    if hasattr(session.call_tool, "__wrapped__"):
        return
    session.call_tool = _follow_calls(session.call_tool)
    for name in names.TRANSPORT_METHODS:
        setattr(transport, name, _outside_runs(getattr(transport, name)))


def _outside_runs(plain: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wrap what a connection does by itself: a stop of the run that opened it must not cut the way of the cancel."""

    @functools.wraps(plain)
    async def work(*args: Any, **kwargs: Any) -> Any:
        with stoppable.detached():
            return await plain(*args, **kwargs)

    return work


def _follow_calls(plain: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(plain)
    async def call_tool(
        self: Any, name: str, arguments: Any = None, *args: Any, meta: Any = None, **kwargs: Any
    ) -> Any:
        if stoppable.current_run() is None:
            return await plain(self, name, arguments, *args, meta=meta, **kwargs)
        call = _ToolCall(self, name)
        meta = call.marked(meta)
        return await call.answer(functools.partial(plain, self, name, arguments, *args, meta=meta, **kwargs))

    return call_tool


class _ToolCall:
    """One call of a tool: its request is a task of its own, so that the stop of the run does not cut it unseen."""

    def __init__(self, session: Any, name: str) -> None:
        self._session = session
        self._name = name
        self._id = uuid.uuid4().hex
        self._confirms = messages.declares_stop(session.server_capabilities)
        self._is_sent = False
        self._is_left = False  # other code has cancelled the caller, so nobody waits for the result
        self._node: RemoteNode
        self._request: asyncio.Task[Any]

    def marked(self, meta: Any) -> Any:
        """Return the metadata of the request, with the id of the call if the server understands it."""
        return {**(meta or {}), messages.CALL_ID: self._id} if self._confirms else meta

    async def answer(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """Call the tool as a node of the current run, and return the result."""
        ref = {"tool": self._name, "call": self._id}
        async with stoppable.remote(f"mcp:{self._name}", tell=self._tell, ref=ref) as self._node:
            with stoppable.detached():
                self._request = asyncio.create_task(self._send(send), name=f"mcp call {self._name}")
            self._request.add_done_callback(_code_of_end)  # reads its error: perhaps nobody waits for it
            try:
                await asyncio.wait({self._request})
            except asyncio.CancelledError:
                self._is_left = not stoppable.should_stop()
                if self._is_left:
                    self._request.cancel()  # as the plain client does
                raise
            return self._result()

    async def _send(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send the request, and record how it ended, also if nobody waits for the result any more."""
        self._is_sent = True
        try:
            result = await send()
        except Exception as error:
            if _code(error) not in _NO_ANSWER:
                self._node.ended(Fate.FINISHED)
            elif not self._node.run.token.stopped:  # otherwise `_tell` finds out whether the server has the stop
                self._node.ended(Fate.TOLD)
            raise
        end = (getattr(result, "meta", None) or {}).get(messages.END)
        self._note(_FINISHED if end is None else messages.CallStopAnswer.model_validate(end))
        return result

    def _result(self) -> Any:
        if self._request.cancelled():
            stoppable.check()
            raise asyncio.CancelledError
        if self._node.fate is not Fate.FINISHED:
            stoppable.check()  # what the server says of a stop of this run is not for the agent
        return self._request.result()

    def _note(self, answer: messages.CallStopAnswer) -> None:
        if answer.fate is not None:
            self._node.ended(answer.fate)
        elif answer.status == stoppable.Status.LOST:
            self._node.give_up()

    async def _tell(self, stop: RemoteStop) -> str | None:
        """Pass a stop on to the server; see ``stoppable.remote``."""
        mode = max(stop.mode, Mode.IMMEDIATE) if self._is_left else stop.mode
        try:
            if self._confirms:
                return await self._stop_there(mode, str(stop.reason))
            if mode <= Mode.GRACEFUL:
                return None  # the protocol can only cancel: the answer is waited for until the grace is over
            return await self._cancel()
        except MCPError as error:
            if error.code == mcp_types.CONNECTION_CLOSED:  # mostly a server of this run, which the stop ended first
                return Fate.TOLD
            raise

    async def _stop_there(self, mode: Mode, reason: str) -> str | None:
        params = messages.StopParams(call=self._id, mode=mode.value, reason=reason)
        answer: messages.CallStopAnswer = await self._session.send_request(
            messages.CallStopRequest(params=params),
            messages.CallStopAnswer,
            request_read_timeout_seconds=_ANSWER_SECONDS,
        )
        if answer.fate is None:
            self._note(answer)
        return answer.fate

    async def _cancel(self) -> str:
        if not self._is_sent:
            self._request.cancel()
            return Fate.SKIPPED
        self._request.cancel()  # the client sends the cancel, or closes the stream, before this task ends
        done, _ = await asyncio.wait({self._request}, timeout=_ANSWER_SECONDS)
        if not done:
            raise TimeoutError(f"the cancel of {self._name} could not be sent")
        if not self._request.cancelled() and _code_of_end(self._request) not in _NO_ANSWER:
            return Fate.FINISHED  # the answer was faster
        await self._see_the_server()
        return Fate.TOLD

    async def _see_the_server(self) -> None:
        """Raise if the server answers nothing: then it is not known to have the cancel. An error is an answer too."""
        try:
            await self._session.send_request(
                mcp_types.PingRequest(), mcp_types.EmptyResult, request_read_timeout_seconds=_ANSWER_SECONDS
            )
        except MCPError as error:
            if error.code in _NO_ANSWER:
                raise


def _code_of_end(request: asyncio.Task[Any]) -> int | None:
    return None if request.cancelled() else _code(request.exception())


def _code(error: BaseException | None) -> int | None:
    return getattr(error, "code", None) if isinstance(error, MCPError) else None

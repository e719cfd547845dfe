"""Tool calls of MCP servers as runs: a cancel of the protocol is a stop, and sync tools are waited for."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import anyio
import mcp_types
from mcp.shared.exceptions import MCPError

import stoppable
from stoppable import Fate, Mode, Reason, ReasonKind, Status
from stoppable.adapters._upstream import require
from stoppable.adapters.mcp import messages, names

CallNext: TypeAlias = Callable[[Any], Awaitable[Any]]
S = TypeVar("S")

_SOURCE = "mcp"
_CALLS_KEPT = 1000


def supervise(
    server: S,
    supervisor: stoppable.Supervisor | None = None,
    *,
    mode: Mode | str = Mode.IMMEDIATE,
    policy: stoppable.Policy | None = None,
) -> S:
    """Make each tool call of an MCP server a run, and return the server.

    ``server`` is an ``MCPServer``, a low-level ``Server``, or a ``FastMCP``. With a supervisor, which has to be open
    while the server works, the calls are in its store, with their progress, and anybody with the store can stop them.
    ``mode`` is the mode of the stop that a cancel of the protocol is; its sender does not wait for an answer.
    ``policy`` has the times of the ladder.
    """
    require("mcp", names.missing())
    stoppable.instrument()  # sync tools run on threads of anyio: otherwise a run would end while its thread goes on
    _keep_progress()
    middleware = names.middleware_of(server)
    if not any(isinstance(one, _ToolRuns) for one in middleware):
        middleware.insert(0, _ToolRuns(supervisor, Mode(mode), policy))
    return server


class _ToolRuns:
    """The outermost middleware: it sees every message of every client."""

    def __init__(self, supervisor: stoppable.Supervisor | None, mode: Mode, policy: stoppable.Policy | None) -> None:
        self._supervisor = supervisor
        self._mode = mode
        self._policy = policy
        self._runs: dict[str, stoppable.Run] = {}  # by the id that the client gave the call

    async def __call__(self, ctx: Any, call_next: CallNext) -> Any:
        if ctx.request_id is None:
            return await call_next(ctx)
        if ctx.method == "tools/call":
            return await self._call(ctx, call_next)
        if ctx.method == messages.STOP:
            return self._stop(ctx.params or {})
        if ctx.method in {"initialize", "server/discover"}:
            return messages.with_stop(await call_next(ctx))
        return await call_next(ctx)

    async def _call(self, ctx: Any, call_next: CallNext) -> Any:
        params = ctx.params or {}
        name = str(params.get("name"))

        async def execute() -> Any:
            async with stoppable.boundary("tool", name):
                return await call_next(ctx)

        start = stoppable.spawn if self._supervisor is None else self._supervisor.start
        handle = await start(execute, name=name, policy=self._policy)
        run: stoppable.Run = handle.run
        self._remember((params.get("_meta") or {}).get(messages.CALL_ID), run)
        try:
            return await handle.result()
        except asyncio.CancelledError:  # by the SDK: the client cancelled the request, or closed its stream
            reason = Reason.of("the client cancelled the call", kind=ReasonKind.DISCONNECT, source=_SOURCE)
            run.stop(self._mode, reason)
            with anyio.CancelScope(shield=True):  # as in plain mcp, which waits for sync tools
                await handle.outcome()
            raise
        except stoppable.RunFailed as failed:
            raise (failed.__cause__ or failed) from None
        except (stoppable.RunStopped, stoppable.RunLost):
            return _stopped_result(run, await handle.outcome())

    def _remember(self, call_id: object, run: stoppable.Run) -> None:
        if not isinstance(call_id, str) or call_id in self._runs:
            return
        self._runs[call_id] = run
        for old in list(self._runs)[: max(0, len(self._runs) - _CALLS_KEPT)]:
            if self._runs[old].outcome is not None:
                del self._runs[old]

    def _stop(self, params: Any) -> Any:
        try:
            order = messages.StopParams.model_validate(params)
            mode = Mode(order.mode)
        except ValueError as error:
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"not a stop: {error}") from None
        run = self._runs.get(order.call)
        if run is None:
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=f"no call {order.call!r:.80}: it was not made here")
        run.stop(mode, Reason.of(order.reason, source=_SOURCE))
        return {**_answer(run), "resultType": "complete"}


def _answer(run: stoppable.Run) -> dict[str, Any]:
    fate = _fate(run)
    return {"status": str(run.status), **({"fate": str(fate)} if fate is not None else {})}


def _fate(run: stoppable.Run) -> Fate | None:
    """Return what became of the tool; None while that is not known, and for ever if the run is lost."""
    outcome = run.outcome
    if outcome is None or outcome.status is not Status.STOPPED:
        return None if outcome is None else messages.fate_of(outcome)
    receipt = run.receipt
    for entry in receipt.entries if receipt is not None else ():
        if entry.run_id == run.id and entry.kind == "tool":
            return Fate(entry.fate)
    return messages.fate_of(outcome)


def _stopped_result(run: stoppable.Run, outcome: stoppable.Outcome[Any]) -> Any:
    """Return the answer to a call that was stopped: the tool's own, if it came to one, or what there is of it."""
    if outcome.result is not None:
        return outcome.result
    texts = [_sentence(run, outcome)]
    if outcome.partial is not None:
        partial = outcome.partial if isinstance(outcome.partial, str) else json.dumps(outcome.partial, default=str)
        texts.append(f"What it had produced: {partial}")
    return {
        "content": [{"type": "text", "text": text} for text in texts],
        "isError": True,
        "_meta": {messages.END: _answer(run)},
        "resultType": "complete",
    }


def _sentence(run: stoppable.Run, outcome: stoppable.Outcome[Any]) -> str:
    why = f": {outcome.reason}" if outcome.reason is not None else ""
    if outcome.status is Status.LOST:
        return f"The tool {run.name} was told to stop{why}. It may still be running."
    return f"The tool {run.name} was stopped{why}. What it did before may have taken effect."


def _keep_progress() -> None:
    """Make the progress that a tool reports an event of its run."""
    session = names.SERVER_SESSION
    if hasattr(session.report_progress, "__wrapped__"):
        return
    report, notify = session.report_progress, session.send_progress_notification

    @functools.wraps(report)
    async def report_progress(
        self: Any, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        stoppable.emit("progress", progress=progress, total=total, message=message)
        await report(self, progress, total, message)

    @functools.wraps(notify)
    async def send_progress_notification(
        self: Any, progress_token: str | int, progress: float, *args: Any, **kwargs: Any
    ) -> None:
        facts = dict(zip(("total", "message"), args, strict=False)) | kwargs
        stoppable.emit("progress", progress=progress, total=facts.get("total"), message=facts.get("message"))
        await notify(self, progress_token, progress, *args, **kwargs)

    session.report_progress = report_progress
    session.send_progress_notification = send_progress_notification

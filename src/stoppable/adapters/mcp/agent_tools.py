"""Agents as the tools of an MCP server: a call is a run, and every cancel of the protocol is a stop.

A plain call is cancelled without an answer, so what became of it is a resource. A client with the tasks extension gets
a task, whose id is the id of the run, so it outlives this process if the store does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ConfigDict, Field

import stoppable
from stoppable import EventType, InvalidArgument, Mode, Policy, Reason, RunNotFound, Status, StoppableError
from stoppable.adapters.mcp import messages
from stoppable.records import Event, Filter, RunRecord, RunSummary
from stoppable.server import Host, Principal, Scope
from stoppable.server.access import own_id, problem_for
from stoppable.server.hosted_agents import Signature
from stoppable.server.responses import Problem, dumps, loads, problem_of
from stoppable.server.schemas import RUN_ID
from stoppable.server.surfaces.ends import End, Said
from stoppable.server.surfaces.surface import POLICY, Surface, may_stop

Handler: TypeAlias = Callable[[Any, Any], Awaitable[Any]]

TASKS = "io.modelcontextprotocol/tasks"
FACTS = "stoppable/run"
"""In the ``_meta`` of a result: what the run was, how it ended, and what may be running still."""

_URI = "stoppable://runs/"
_LISTED = 50
_LOCAL = Principal(sees_all=True, actor="local")
_CANCELLED = "the client cancelled the call"
_NO_CAPABILITY = -32021
_POLL = 500  # milliseconds between two looks at a task


class AgentTools:
    """The tools, tasks and resources that a server offers of its agents."""

    def __init__(self, host: Host, policy: Policy = POLICY) -> None:
        self._supervisor = host.supervisor
        self._surface = Surface(host, "mcp", policy)

    def server(self) -> Server[Any]:
        """Return the server, for any transport."""
        server: Server[Any] = Server(
            "stoppable",
            version=stoppable.__version__,
            on_list_tools=_spelled(self._tools),
            on_call_tool=_spelled(self._call),
            on_list_resources=_spelled(self._resources),
            on_list_resource_templates=_spelled(self._templates),
            on_read_resource=_spelled(self._read),
        )
        server.add_request_handler(messages.STOP, messages.StopParams, _spelled(self._stop))
        for method, handler in {"get": self._get, "cancel": self._cancel, "update": self._update}.items():
            server.add_request_handler(f"tasks/{method}", _TaskParams, _spelled(handler))
        server.extensions[TASKS] = {}
        server.middleware.insert(0, _declare)
        return server

    # Tools

    async def _tools(self, ctx: Any, params: Any) -> Any:  # noqa: ARG002 - there is one page
        _caller(ctx, Scope.READ, Scope.START)  # clients and the SDK read the schema of what they call
        tools = [
            types.Tool(
                name=agent["name"],
                description=agent["description"] or None,
                input_schema=_input(self._surface.signature(agent["name"]), agent["input"]),
            )
            for agent in self._surface.agents.describe()
        ]
        return types.ListToolsResult(tools=tools)

    async def _call(self, ctx: Any, params: Any) -> Any:
        caller = _caller(ctx, Scope.START)
        signature = self._surface.signature(params.name)
        call_id = (params.meta or {}).get(messages.CALL_ID)
        run_id = own_id(caller, call_id) if isinstance(call_id, str) and _is_id(call_id) else None
        try:
            arguments = _arguments(signature, params.arguments or {})
            record = await self._begin(caller, params.name, arguments, run_id)
        except InvalidArgument as error:
            return _failed([str(error)])  # in a result, because a model can mend it
        try:
            await anyio.lowlevel.checkpoint()  # where a cancel takes effect that came in between
            if _wants_task(ctx):
                return {"resultType": "task", **_task(record)}
            await self._follow(ctx, record)
        except BaseException:  # the SDK cancels this for the client, or nobody can be answered any more
            if may_stop(caller):
                self._surface.leave(record.id, _CANCELLED)
            raise
        return _result(*await self._ended(record.id, caller))

    async def _begin(self, caller: Principal, agent: str, arguments: Any, run_id: str | None) -> RunRecord:
        """Start a run, shielded: otherwise a cancel could come when it is in the store, and its id not here."""
        with anyio.CancelScope(shield=True):
            return await self._surface.begin(caller, agent, arguments, run_id=run_id)
        raise AssertionError("this scope is never cancelled")

    async def _follow(self, ctx: Any, record: RunRecord) -> None:
        """Report the events of a run as progress until it is over; the first report has the id of the run."""
        said = Said(is_generator=self._surface.agents.is_generator(record.name))
        await ctx.session.report_progress(0, None, f"{record.name} is run {record.id}")
        async for event in self._supervisor.events(record.id):
            if text := _progress(event, said):
                await ctx.session.report_progress(event.seq, None, text)

    async def _ended(self, run_id: str, caller: Principal) -> tuple[RunRecord, End]:
        record = await self._surface.record(run_id, caller)
        end = await self._surface.end(record)
        assert end is not None, "its events have ended"
        return record, end

    async def _stop(self, ctx: Any, params: messages.StopParams) -> Any:
        """Stop a call for a client that has the adapter too, and say how far it is."""
        caller = _caller(ctx, Scope.STOP)
        try:
            mode = Mode(params.mode)
            record = await self._found(params.call, caller)
        except (ValueError, RunNotFound):
            message = f"no call {params.call!r:.80} that {params.mode!r:.40} could stop"
            raise MCPError(code=types.INVALID_PARAMS, message=message) from None
        await self._ask(record, caller, params.reason, mode)
        return _answer(await self._surface.record(record.id, caller)).model_dump(exclude_none=True)

    # Tasks

    async def _get(self, ctx: Any, params: _TaskParams) -> Any:
        record = await self._task_record(ctx, params.task_id, _caller(ctx, Scope.READ))
        task, end = _task(record), await self._surface.end(record)
        if end is None:
            return task
        if record.status is Status.LOST:
            data = {"stoppable": _plain(end.facts)}
            return {**task, "error": {"code": types.INTERNAL_ERROR, "message": end.sentence, "data": data}}
        if record.status is Status.STOPPED:
            return task
        return {**task, "result": _result(record, end).model_dump(mode="json", by_alias=True, exclude_none=True)}

    async def _cancel(self, ctx: Any, params: _TaskParams) -> Any:
        """Ask for a stop, which is in the store when this is answered; ``tasks/get`` says when the run has ended."""
        caller = _caller(ctx, Scope.STOP)
        record = await self._task_record(ctx, params.task_id, caller)
        if not record.over:
            await self._ask(record, caller, "the client cancelled the task", Mode.GRACEFUL)
        return types.EmptyResult()

    async def _update(self, ctx: Any, params: _TaskParams) -> Any:
        await self._task_record(ctx, params.task_id, _caller(ctx, Scope.READ))
        return types.EmptyResult()  # no task here asks its client for anything

    async def _task_record(self, ctx: Any, task_id: str, caller: Principal) -> RunRecord:
        if not _wants_task(ctx):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise MCPError(code=_NO_CAPABILITY, message=f"declare the extension {TASKS}", data=needed)
        try:
            return await self._found(task_id, caller)
        except RunNotFound:
            raise MCPError(code=types.INVALID_PARAMS, message=f"no task {task_id!r:.120}") from None

    # Resources

    async def _resources(self, ctx: Any, params: Any) -> Any:
        caller = _caller(ctx, Scope.READ)
        matching = Filter(owner=caller.owner, roots=True)
        page = await self._supervisor.list(matching, cursor=getattr(params, "cursor", None), limit=_LISTED)
        resources = [_resource(run) for run in page.runs]
        return types.ListResourcesResult(resources=resources, next_cursor=page.cursor)

    async def _templates(self, ctx: Any, params: Any) -> Any:  # noqa: ARG002 - there is one page
        _caller(ctx, Scope.READ)
        about = "How a run ended, what it had said, and the receipt of its stop."
        template = types.ResourceTemplate(
            name="run", uri_template=f"{_URI}{{run_id}}", description=about, mime_type="application/json"
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _read(self, ctx: Any, params: Any) -> Any:
        caller, uri = _caller(ctx, Scope.READ), str(params.uri)
        try:
            record = await self._found(uri.removeprefix(_URI), caller)
        except RunNotFound:
            raise MCPError(code=types.INVALID_PARAMS, message=f"no resource {uri!r:.150}", data={"uri": uri}) from None
        end = await self._surface.end(record)
        facts: dict[str, Any] = {"run": record.id, "agent": record.name, "status": record.status}
        if end is not None:
            facts = {**facts, "sentence": end.sentence, "text": end.text, "receipt": end.facts}
        content = types.TextResourceContents(uri=uri, mime_type="application/json", text=dumps(facts).decode())
        return types.ReadResourceResult(contents=[content])

    # All of them

    async def _found(self, run_id: str, caller: Principal) -> RunRecord:
        if not _is_id(run_id):
            raise RunNotFound(run_id)
        return await self._surface.record(run_id, caller)

    async def _ask(self, record: RunRecord, caller: Principal, message: str, mode: Mode) -> None:
        """Ask for the stop of a run, without waiting for its end."""
        reason = Reason.of(message, source=self._surface.protocol)
        await self._supervisor.stop(record.id, mode, reason, caller.actor, owner=record.owner)


class _TaskParams(types.RequestParams):
    model_config = ConfigDict(populate_by_name=True)

    task_id: str = Field(alias="taskId")


async def _declare(ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    """Tell clients with the adapter that calls can be stopped here with an answer."""
    answer = await call_next(ctx)
    if ctx.request_id is not None and ctx.method in {"initialize", "server/discover"}:
        return messages.with_stop(answer)
    return answer


def _spelled(handle: Handler) -> Handler:
    """Return a handler whose errors are those of the protocol."""

    @functools.wraps(handle)
    async def answer(ctx: Any, params: Any) -> Any:
        try:
            return await handle(ctx, params)
        except Problem as problem:
            raise _error(problem) from None
        except StoppableError as error:
            is_local = ctx.request is None
            raise _error(problem_of(error, to_operator=True) if is_local else problem_for(ctx.request, error)) from None

    return answer


_WRONG_PARAMS = {404, 422}


def _error(problem: Problem) -> MCPError:
    code = types.INVALID_PARAMS if problem.status_code in _WRONG_PARAMS else types.INVALID_REQUEST
    data = _plain({"code": problem.code, "status": problem.status_code, **problem.more})
    return MCPError(code=code, message=problem.detail, data=data)


def _caller(ctx: Any, *scopes: Scope) -> Principal:
    """Return who makes a request, and has one of some scopes.

    Each request has its own caller, because a session of the old protocol has none.
    """
    if ctx.request is None:
        return _LOCAL
    held = ctx.request.state.stoppable_principal.scopes
    return Host.caller(ctx.request, next((one for one in scopes if one in held), scopes[0]))


def _is_id(run_id: str) -> bool:
    return re.fullmatch(RUN_ID, run_id) is not None


# An agent may have one parameter that no caller can name.
_SINGLE = "input"


def _has_single(signature: Signature) -> bool:
    return signature.first is not None and not signature.takes(signature.first)


def _input(signature: Signature, schema: dict[str, Any]) -> dict[str, Any]:
    if not _has_single(signature):
        return schema
    return {"type": "object", "properties": {_SINGLE: {}}, "required": [_SINGLE], "additionalProperties": False}


def _arguments(signature: Signature, arguments: dict[str, Any]) -> Any:
    if not _has_single(signature):
        return arguments
    if set(arguments) != {_SINGLE}:
        raise InvalidArgument(f"give the one argument under the name {_SINGLE!r}")
    return arguments[_SINGLE]


def _progress(event: Event, said: Said) -> str:
    """Return what a client hears of an event: text as it is said, progress, and that the run is being stopped."""
    if delta := said.take(event):
        return delta
    data = event.data
    if event.type is EventType.STATUS and data.get("status") == Status.STOPPING:
        return "stopping"
    if event.type is not EventType.PROGRESS or (said.is_generator and data.get("name") == "item"):
        return ""
    details = data.get("data") or {}
    text = details.get("message")
    return text if isinstance(text, str) else f"{data.get('name')} {dumps(details).decode()}"


def _result(record: RunRecord, end: End) -> types.CallToolResult:
    """Return the result of a call; one that was not completed is an error, with what it had said."""
    meta = {FACTS: _plain(end.facts)}
    if end.status is Status.COMPLETED:
        content = [types.TextContent(type="text", text=end.said if end.result is None else _text(end.result))]
        structured = _plain(end.result) if isinstance(end.result, dict) else None
        return types.CallToolResult(content=content, structured_content=structured, _meta=meta)
    if record.stop is not None:
        meta[messages.END] = _answer(record).model_dump(exclude_none=True)
    return _failed([end.sentence, *([f"What it had produced: {end.text}"] if end.text else [])], meta)


def _text(result: Any) -> str:
    return result if isinstance(result, str) else dumps(result).decode()


def _failed(texts: list[str], meta: dict[str, Any] | None = None) -> types.CallToolResult:
    content = [types.TextContent(type="text", text=text) for text in texts]
    return types.CallToolResult(content=content, is_error=True, _meta=meta)


def _answer(record: RunRecord) -> messages.CallStopAnswer:
    fate = None if record.outcome is None else messages.fate_of(record.outcome)
    return messages.CallStopAnswer(status=record.status.value, fate=None if fate is None else fate.value)


def _plain(value: Any) -> Any:
    return loads(dumps(value))


def _wants_task(ctx: Any) -> bool:
    """Return whether a request declares the tasks extension, as each one does that may be answered with a task."""
    declared = getattr(ctx.session.client_capabilities, "extensions", None) or {}
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in declared


_STATES = {
    Status.COMPLETED: "completed",
    Status.FAILED: "completed",  # with a result that is an error; `failed` is for errors of the protocol
    Status.STOPPED: "cancelled",
    Status.LOST: "failed",  # cancelled would say that it has ended
}


def _task(record: RunRecord) -> dict[str, Any]:
    """Return a run as a task, which is ``working`` until all of it has ended."""
    message = "stopping" if record.stop is not None else None
    changed_at = record.ended_at or record.stop_requested_at or record.started_at or record.created_at
    task = {
        "taskId": record.id,
        "status": _STATES.get(record.status, "working"),
        "statusMessage": End.of(record).sentence if record.over else message,
        "createdAt": _time(record.created_at),
        "lastUpdatedAt": _time(changed_at),
        "ttlMs": None,  # it is kept as long as the run
        "pollIntervalMs": _POLL,
    }
    return {name: value for name, value in task.items() if value is not None or name == "ttlMs"}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _resource(run: RunSummary) -> types.Resource:
    about = f"{run.name}: {run.status}"
    return types.Resource(uri=_URI + run.id, name=run.id, description=about, mime_type="application/json")

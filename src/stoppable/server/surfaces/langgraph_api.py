"""The agents of a server behind the LangGraph API, at ``/lg``: an assistant is an agent, and a thread a conversation.

A run of the API is a run, and each cancel of its clients is a stop: ``runs.cancel`` with either action, leaving a
stream with ``on_disconnect="cancel"``, and a new run with ``multitask_strategy`` interrupt or rollback.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

import stoppable
from stoppable._core.values import RUN_ID, Policy, Status
from stoppable.errors import RunNotFound
from stoppable.records import RunRecord, RunSummary
from stoppable.server.access import Principal, Scope, caller_of
from stoppable.server.backend import Host
from stoppable.server.responses import PRIVATE, Problem, json_response, loads
from stoppable.server.schemas import StopBody
from stoppable.server.surfaces import langgraph_wire as wire
from stoppable.server.surfaces.ends import End
from stoppable.server.surfaces.inputs import invalid, read_model
from stoppable.server.surfaces.langgraph_threads import (
    KEPT,
    TEMPORARY,
    Thread,
    Threads,
    keeps_history,
    state_at,
    turn_of,
    with_end,
)
from stoppable.server.surfaces.surface import POLICY, Surface, surface_route

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_HERE = "here are /assistants, /threads and /runs, without crons and the store"
_Route: TypeAlias = tuple[str, str, Callable[..., Any]]
_Action: TypeAlias = Literal["interrupt", "rollback"]


def langgraph_api(host: Host, *, policy: Policy = POLICY) -> APIRouter:
    """Return the routes of the LangGraph API for the agents of a server, for ``serve`` and ``create_app``.

    An assistant is an agent, by its name. ``policy`` is that of the runs: by default a stop takes four seconds at most,
    because clients wait for it.
    """
    router = APIRouter(prefix="/lg", route_class=surface_route(wire.spell))
    surface = Surface(host, wire.PROTOCOL, policy)
    threads = Threads(surface, host.supervisor)
    for part in (_Assistants(host, surface), _Threads(host, threads), _Runs(host, surface, threads)):
        for method, path, handler in part.routes():
            _add(router, [method], path, handler)
    _add(router, _METHODS, "/{path:path}", _unknown)
    return router


def _add(router: APIRouter, methods: list[str], path: str, handler: Callable[..., Any]) -> None:
    # Not in the document of our own routes: the API has one.
    router.add_api_route(path, handler, methods=methods, response_class=Response, include_in_schema=False)


async def _unknown(request: Request) -> Response:
    """Refuse what is not here."""
    raise Problem(404, "not_found", f"unknown request: {request.method} {request.url.path[:200]}; {_HERE}")


def _id_of(text: str) -> str:
    """Return the id of a thread, if it can be one."""
    if re.fullmatch(wire.ID, text) is None:
        message = (
            f"thread_id: {text!r:.80} is no id for a thread: use letters, digits and . _ ~ : - (up to 115 of them)"
        )
        raise Problem(422, "invalid_argument", message)
    return text


class _Assistants:
    """What the server is, and which agents it has."""

    def __init__(self, host: Host, surface: Surface) -> None:
        self._host, self._surface = host, surface

    def routes(self) -> tuple[_Route, ...]:
        """Return where each is."""
        return (
            ("GET", "/ok", self.ok),
            ("GET", "/info", self.info),
            ("POST", "/assistants/search", self.search),
            ("POST", "/assistants/count", self.count),
            ("GET", "/assistants/{name}", self.get),
            ("GET", "/assistants/{name}/graph", self.graph),
            ("GET", "/assistants/{name}/schemas", self.schemas),
        )

    async def ok(self, request: Request) -> Response:
        """Say that the server is there."""
        caller_of(request, Scope.READ)
        return json_response({"ok": True})

    async def info(self, request: Request) -> Response:
        """Say what the server is."""
        caller_of(request, Scope.READ)
        flags = {"assistants": True, "crons": False, "langsmith": False, "store": False}
        return json_response({"version": stoppable.__version__, "flags": flags})

    async def search(self, request: Request) -> Response:
        """List the agents."""
        caller_of(request, Scope.READ)
        found, body = await self._found(request)
        return json_response(found[body.offset : body.offset + body.limit])

    async def count(self, request: Request) -> Response:
        """Count them."""
        caller_of(request, Scope.READ)
        found, _ = await self._found(request)
        return json_response(len(found))

    async def _found(self, request: Request) -> tuple[list[dict[str, Any]], wire.AssistantSearch]:
        body, _ = await read_model(self._host, request, wire.AssistantSearch, b"{}")
        found = [
            wire.assistant_object(one["name"], one["description"])
            for one in self._surface.agents.describe()
            if body.graph_id in {None, one["name"]} and (body.name or "").lower() in one["name"].lower()
        ]
        return [one for one in found if _contains(one["metadata"], body.metadata)], body

    async def get(self, request: Request, name: str) -> Response:
        """Show an agent."""
        caller_of(request, Scope.READ)
        self._surface.signature(name)  # or a 404
        [one] = [one for one in self._surface.agents.describe() if one["name"] == name]
        return json_response(wire.assistant_object(name, one["description"]))

    async def graph(self, request: Request, name: str) -> Response:
        """Show an agent as a graph."""
        caller_of(request, Scope.READ)
        self._surface.signature(name)  # or a 404
        return json_response(wire.graph_object(name))

    async def schemas(self, request: Request, name: str) -> Response:
        """Show what an agent takes."""
        caller_of(request, Scope.READ)
        schema = self._surface.signature(name).schema  # or a 404
        others = dict.fromkeys(("output_schema", "state_schema", "config_schema", "context_schema"))
        return json_response({"graph_id": name, "input_schema": schema, **others})


class _Threads:
    """Threads and their states."""

    def __init__(self, host: Host, threads: Threads) -> None:
        self._host, self._threads = host, threads

    def routes(self) -> tuple[_Route, ...]:
        """Return where each is."""
        one = "/threads/{thread_id}"
        return (
            ("POST", "/threads", self.create),
            ("POST", "/threads/search", self.search),
            ("POST", "/threads/count", self.count),
            ("GET", one, self.get),
            ("PATCH", one, self.update),
            ("GET", f"{one}/state", self.state),
            ("POST", f"{one}/state/checkpoint", self.state_of_checkpoint),
            ("GET", f"{one}/state/{{checkpoint_id}}", self.state_at),
            ("POST", f"{one}/history", self.history),
        )

    async def create(self, request: Request) -> Response:
        """Make a thread."""
        caller = caller_of(request, Scope.START)
        body, _ = await read_model(self._host, request, wire.ThreadBody, b"{}")
        thread_id = body.thread_id or str(uuid.uuid4())
        thread = await self._threads.find(caller.owner, thread_id)
        if thread is not None and body.if_exists != "do_nothing":
            raise Problem(409, "thread_exists", f"Thread {thread_id} already exists")
        if thread is None:
            facts = {name: value for name, value in (body.metadata or {}).items() if value is not None}
            self._threads.keep(caller.owner, thread_id, facts, None)
        return await self._shown(await self._threads.get(caller.owner, thread_id))

    async def get(self, request: Request, thread_id: str) -> Response:
        """Show a thread."""
        caller = caller_of(request, Scope.READ)
        return await self._shown(await self._threads.get(caller.owner, thread_id))

    async def update(self, request: Request, thread_id: str) -> Response:
        """Add to the metadata of a thread."""
        caller = caller_of(request, Scope.START)
        body, _ = await read_model(self._host, request, wire.ThreadPatch, b"{}")
        thread = await self._threads.get(caller.owner, thread_id)
        facts = {**thread.metadata, **(body.metadata or {})}
        self._threads.keep(caller.owner, thread_id, facts, thread.created_at)
        return await self._shown(await self._threads.get(caller.owner, thread_id))

    async def search(self, request: Request) -> Response:
        """List the threads."""
        caller = caller_of(request, Scope.READ)
        found, body = await self._search(request, caller)
        shown = found[body.offset : body.offset + body.limit]
        return json_response([await self._object(thread) for thread in shown])

    async def count(self, request: Request) -> Response:
        """Count them."""
        caller = caller_of(request, Scope.READ)
        found, _ = await self._search(request, caller)
        return json_response(len(found))

    async def _search(self, request: Request, caller: Principal) -> tuple[list[Thread], wire.ThreadSearch]:
        body, _ = await read_model(self._host, request, wire.ThreadSearch, b"{}")
        if body.values:
            raise invalid("values: not supported here: search by metadata, status or ids")
        found = [
            thread
            for thread in await self._threads.all(caller.owner)
            if _contains(thread.facts, body.metadata)
            and body.status in {None, thread.status}
            and (body.ids is None or thread.id in body.ids)
        ]
        key = {"thread_id": "id"}.get(body.sort_by or "", body.sort_by or "updated_at")
        return sorted(found, key=lambda one: getattr(one, key), reverse=body.sort_order != "asc"), body

    async def _shown(self, thread: Thread) -> Response:
        return json_response(await self._object(thread))

    async def _object(self, thread: Thread) -> dict[str, Any]:
        states = await self._threads.states(thread)
        return {
            "thread_id": thread.id,
            "created_at": wire.time_text(thread.created_at),
            "updated_at": wire.time_text(thread.updated_at),
            "metadata": thread.facts,
            "status": thread.status,
            "values": states[-1].values if states else {},
            "interrupts": {},
            "config": {},
        }

    # States

    async def state(self, request: Request, thread_id: str) -> Response:
        """Show what a thread contains."""
        thread, states = await self._states(request, thread_id)
        return json_response(wire.state_object(thread_id, states[-1] if states else None, thread.facts))

    async def state_at(self, request: Request, thread_id: str, checkpoint_id: str) -> Response:
        """Show what a thread contained."""
        thread, states = await self._states(request, thread_id)
        return json_response(wire.state_object(thread_id, state_at(states, checkpoint_id), thread.facts))

    async def state_of_checkpoint(self, request: Request, thread_id: str) -> Response:
        """Show what a thread contained."""
        caller_of(request, Scope.READ)
        body, _ = await read_model(self._host, request, wire.CheckpointBody)
        checkpoint_id = wire.checkpoint_id_of(body.checkpoint)
        if checkpoint_id is None:
            return await self.state(request, thread_id)
        return await self.state_at(request, thread_id, checkpoint_id)

    async def history(self, request: Request, thread_id: str) -> Response:
        """List what a thread contained, newest first."""
        thread, states = await self._states(request, thread_id)
        body, _ = await read_model(self._host, request, wire.HistoryBody, b"{}")
        before = wire.checkpoint_id_of(body.before)
        if before is not None:
            states = states[: states.index(state_at(states, before))]
        shown = [wire.state_object(thread_id, state, thread.facts) for state in reversed(states)]
        return json_response([one for one in shown if _contains(one["metadata"], body.metadata)][: body.limit])

    async def _states(self, request: Request, thread_id: str) -> tuple[Thread, list[wire.State]]:
        caller = caller_of(request, Scope.READ)
        thread = await self._threads.get(caller.owner, thread_id)
        return thread, await self._threads.states(thread)


def _contains(facts: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return all(name in facts and facts[name] == value for name, value in (wanted or {}).items())


class _Runs:
    """The runs of threads, and runs without one."""

    def __init__(self, host: Host, surface: Surface, threads: Threads) -> None:
        self._host, self._surface, self._threads = host, surface, threads

    def routes(self) -> tuple[_Route, ...]:
        """Return where each is."""
        several = "/threads/{thread_id}/runs"
        one = several + "/{run_id}"
        return (
            ("POST", several, self.create),
            ("POST", f"{several}/stream", self.stream),
            ("POST", f"{several}/wait", self.wait),
            ("GET", several, self.list),
            ("GET", one, self.get),
            ("POST", f"{one}/cancel", self.cancel),
            ("GET", f"{one}/join", self.join),
            ("GET", f"{one}/stream", self.join_stream),
            ("POST", "/runs", self.create),
            ("POST", "/runs/stream", self.stream),
            ("POST", "/runs/wait", self.wait),
            ("POST", "/runs/cancel", self.cancel_many),
        )

    async def create(self, request: Request, thread_id: str | None = None) -> Response:
        """Start a run, and answer at once."""
        record, thread_id, _ = await self._begin(request, thread_id)
        return json_response(wire.run_object(record, thread_id), headers=_place(thread_id, record.id))

    async def stream(self, request: Request, thread_id: str | None = None) -> Response:
        """Start a run, and answer with its events; leaving them stops it only if the client has asked for that."""
        self._surface.check_room(caller_of(request, Scope.START))
        record, thread_id, body = await self._begin(request, thread_id)
        response = self._stream(request, record, thread_id, body.modes, stops=body.on_disconnect == "cancel")
        response.headers.update(_place(thread_id, record.id, "/stream"))
        return response

    async def wait(self, request: Request, thread_id: str | None = None) -> Response:
        """Start a run, and answer at its end."""
        record, thread_id, body = await self._begin(request, thread_id)
        return await self._end(request, record, thread_id, stops=body.on_disconnect == "cancel")

    async def list(
        self,
        request: Request,
        thread_id: str,
        limit: Annotated[int, Query(ge=1, le=1000)] = 10,
        offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
        status: Annotated[wire.RunStatus | None, Query()] = None,
    ) -> Response:
        """List the runs of a thread, newest first."""
        caller = caller_of(request, Scope.READ)
        thread = await self._threads.get(caller.owner, thread_id)
        runs = [run for run in thread.runs if status in {None, wire.status_of(run.status, run.reason)}]
        records = [await self._surface.record(run.id, caller) for run in runs[offset : offset + limit]]
        return json_response([wire.run_object(record, thread_id) for record in records])

    async def get(self, request: Request, thread_id: str, run_id: str) -> Response:
        """Show a run."""
        record = await self._found(thread_id, run_id, caller_of(request, Scope.READ))
        return json_response(wire.run_object(record, thread_id))

    async def join(
        self,
        request: Request,
        thread_id: str,
        run_id: str,
        cancel_on_disconnect: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query
    ) -> Response:
        """Answer at the end of a run."""
        caller = caller_of(request, Scope.STOP if cancel_on_disconnect else Scope.READ)
        record = await self._found(thread_id, run_id, caller)
        return await self._end(request, record, thread_id, stops=cancel_on_disconnect)

    async def join_stream(
        self,
        request: Request,
        thread_id: str,
        run_id: str,
        cancel_on_disconnect: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query
        stream_mode: Annotated[Sequence[str] | None, Query()] = None,
    ) -> Response:
        """Answer with the events of a run, from its start or after the last one that the client has."""
        caller = caller_of(request, Scope.STOP if cancel_on_disconnect else Scope.READ)
        record = await self._found(thread_id, run_id, caller)
        modes = _modes_of(stream_mode) or wire.request_of(record).get("modes") or ("values",)
        self._surface.check_room(caller)
        after = _number_of(request.headers.get("last-event-id", ""))
        response = self._stream(request, record, thread_id, modes, stops=cancel_on_disconnect, after=after)
        response.headers.update(_place(thread_id, run_id, "/stream"))
        return response

    # Cancel

    async def cancel(
        self,
        request: Request,
        thread_id: str,
        run_id: str,
        wait: Annotated[bool, Query()] = False,  # noqa: FBT002 - a query
        action: Annotated[_Action, Query()] = "interrupt",
    ) -> Response:
        """Stop a run; with ``wait`` answer once it has ended. The same request again changes nothing."""
        caller = caller_of(request, Scope.STOP)
        record = await self._found(thread_id, run_id, caller, rolled_back=True)
        if not wait:
            await self._stop(request, record.id, caller, action)
            return Response(status_code=202, headers=PRIVATE)
        record = await self._surface.stop(request, record, caller, _REASONS[action])
        if record.status is Status.LOST:
            raise Problem(409, "stop_not_confirmed", End.of(record).sentence)
        return Response(status_code=204 if record.over else 202, headers=PRIVATE)

    async def cancel_many(self, request: Request, action: Annotated[_Action, Query()] = "interrupt") -> Response:
        """Stop some runs of a thread, or all that are pending or at work."""
        caller = caller_of(request, Scope.STOP)
        body, _ = await read_model(self._host, request, wire.CancelBody, b"{}")
        if body.run_ids is not None:
            if body.thread_id is None or body.status is not None:
                raise invalid("give a thread_id with run_ids, or a status")
            records = [await self._found(body.thread_id, one, caller, rolled_back=True) for one in body.run_ids]
            run_ids = [record.id for record in records]
        elif body.status is not None:
            wanted = {"pending", "running"} if body.status == "all" else {body.status}
            live = await self._threads.live_runs(caller.owner, body.thread_id)
            run_ids = [run.id for run in live if wire.status_of(run.status, run.reason) in wanted]
        else:
            raise invalid("give a thread_id with run_ids, or a status")
        for run_id in run_ids:
            await self._stop(request, run_id, caller, action)
        return Response(status_code=204, headers=PRIVATE)

    async def _stop(self, request: Request, run_id: str, caller: Principal, action: _Action) -> None:
        record = await self._surface.record(run_id, caller)
        await self._surface.stop_with(request, record, caller, StopBody(reason=_REASONS[action]), 0.0)

    # Start and end

    async def _begin(self, request: Request, thread_id: str | None) -> tuple[RunRecord, str, wire.RunBody]:
        caller = caller_of(request, Scope.START)
        body, _ = await read_model(self._host, request, wire.RunBody)
        body.refuse_what_is_missing()
        signature = self._surface.signature(body.assistant_id)  # or a 404
        thread = await self._thread_for(body, thread_id, caller)
        begins_at = None if keeps_history(signature) else body.begins_at
        run_id = str(uuid.uuid4())
        base = await self._threads.base(thread, begins_at)
        turn = turn_of(signature, body.input, base, thread.id, run_id)

        async def decide(live: Sequence[RunSummary]) -> None:
            await self._make_way(request, live, body, caller)

        async def complete() -> None:
            if turn.takes_history:
                now = await self._threads.get(caller.owner, thread.id) if thread.runs else thread
                turn.add_history(await self._threads.base(now, begins_at))

        record = await self._surface.queue(
            caller,
            body.assistant_id,
            turn.arguments,
            run_id=run_id,
            conversation=thread.id,
            labels={wire.PROTOCOL: TEMPORARY if thread_id is None and body.on_completion != "keep" else KEPT},
            metadata={wire.PROTOCOL: {**body.kept(), **turn.kept(), **thread.kept(), "begins_at": begins_at}},
            decide=decide,
            complete=complete,
        )
        return record, thread.id, body

    async def _thread_for(self, body: wire.RunBody, thread_id: str | None, caller: Principal) -> Thread:
        if thread_id is not None:
            thread = await self._threads.find(caller.owner, thread_id)
            if thread is not None:
                return thread
            if body.if_not_exists != "create":
                raise Problem(404, "thread_not_found", f"Thread {thread_id[:150]} not found")
            _id_of(thread_id)
        now = self._host.supervisor.store.now()
        made = thread_id or str(uuid.uuid4())
        return Thread(id=made, owner=caller.owner, metadata={}, created_at=now, updated_at=now)

    async def _make_way(
        self, request: Request, live: Sequence[RunSummary], body: wire.RunBody, caller: Principal
    ) -> None:
        """Do with the runs of a thread that are at work what a new one asks for."""
        strategy = body.multitask_strategy or "enqueue"
        if not live or strategy == "enqueue":
            return
        if strategy == "reject":
            raise Problem(409, "thread_busy", "Thread is already running a task: wait for it, or use another strategy")
        caller.require(Scope.STOP)
        for run in live:
            await self._stop(request, run.id, caller, strategy)

    async def _end(self, request: Request, record: RunRecord, thread_id: str, *, stops: bool) -> Response:
        """Return the values of a thread after a run, or its error."""
        caller: Principal = request.state.stoppable_principal  # whose scopes were checked
        record = await self._surface.wait(request, record, caller, stops=stops)
        end = await self._surface.end(record)
        headers = _place(thread_id, record.id, "/join")
        values = await self._threads.values_at(record, thread_id)
        if end is None or wire.is_rollback(end.status, end.reason):
            return json_response(values, headers=headers)
        error = wire.error_of(end)
        answer = with_end(values, end) if error is None else {"__error__": error}
        return json_response(answer, headers=headers)

    def _stream(
        self,
        request: Request,
        record: RunRecord,
        thread_id: str,
        modes: Sequence[str],
        *,
        stops: bool,
        after: int = -1,
    ) -> Response:
        async def load() -> Mapping[str, Any]:
            return await self._threads.values_at(record, thread_id)

        caller: Principal = request.state.stoppable_principal
        events = wire.RunEvents(record, thread_id, modes, load, with_end, after)
        return self._surface.stream(record, caller, events, stops=stops)

    async def _found(self, thread_id: str, run_id: str, caller: Principal, *, rolled_back: bool = False) -> RunRecord:
        """Return a run of a thread, or raise a 404; one that was rolled back is no longer there."""
        try:
            if re.fullmatch(RUN_ID, run_id) is None:
                raise RunNotFound(run_id)
            record = await self._surface.record(run_id, caller)
            is_gone = record.outcome is not None and wire.is_rollback(record.status, record.outcome.reason)
            if record.key != self._surface.key(thread_id) or wire.PROTOCOL not in record.labels:
                raise RunNotFound(run_id)
            if is_gone and not rolled_back:
                raise RunNotFound(run_id)
        except RunNotFound:
            raise Problem(404, "run_not_found", f"Run {run_id[:150]} not found") from None
        return record


_REASONS: Mapping[_Action, str] = {"interrupt": "cancelled", "rollback": wire.ROLLBACK}


def _place(thread_id: str, run_id: str, more: str = "") -> dict[str, str]:
    """Return the headers that say where a run is; clients put the address of the API before it."""
    path = f"/threads/{thread_id}/runs/{run_id}"
    location = {"Location": path + more} if more else {}
    return {"Content-Location": path, "Stoppable-Run-Id": run_id, **location}


def _modes_of(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the modes in a query, in which some clients send a list as JSON."""
    modes: list[Any] = []
    for one in filter(None, given or ()):  # the client of Python sends an empty one for none
        try:
            several = loads(one.encode()) if one.startswith("[") else [one]
        except ValueError:
            several = [one]
        modes += several if isinstance(several, list) else [one]
    for mode in modes:
        if mode not in wire.ALL_MODES:
            raise invalid(f"stream_mode: unknown mode {mode!r:.80}: use {', '.join(wire.ALL_MODES)}")
    return tuple(modes)


def _number_of(text: str) -> int:
    """Return the number of the last event that a client has; -1, or what is no number, asks for all."""
    return int(text) if re.fullmatch(r"\d{1,15}", text, re.ASCII) else -1

"""Runs over HTTP: start, list, read, follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Body, Header, Path, Query, Request
from pydantic import StringConstraints
from starlette.responses import Response

from stoppable._core.state import Status
from stoppable._core.stop import Answer, Receipt
from stoppable.errors import RunNotFound
from stoppable.records import Filter, RunRecord, RunSummary, Summaries
from stoppable.server import openapi
from stoppable.server.access import Principal, Scope, caller_of, own_id, visible_receipt, visible_record
from stoppable.server.agents import NOTHING
from stoppable.server.backend import Backend
from stoppable.server.openapi import BODY, answer, errors
from stoppable.server.requests import RUN_ID, StartBody
from stoppable.server.responses import Problem, json_response
from stoppable.server.sse.response import open_stream, resume_stream
from stoppable.server.sse.run_changes import ChangesView
from stoppable.server.sse.views import RunView, TreeView
from stoppable.stores.rules import receipt_of
from stoppable.supervisor import StartOptions

RunIdPath = Annotated[str, Path(description="The id of a run.", examples=["3f2a"], pattern=RUN_ID)]
Label = Annotated[str, StringConstraints(pattern=r"^[^:]{0,256}:", max_length=513)]
_RUN_HEADERS = {"Stoppable_Run_Id": "The id of the run.", "Location": "Where the run is."}


_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "The sequence number; events about the stream itself have none."},
        "event": {"type": "string", "examples": ["status", "progress", "partial", "entered", "left", "done"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


class RunRoutes:
    """The routes about runs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def add_to(self, router: APIRouter) -> None:
        """Add them."""
        router.add_api_route(
            "/runs",
            self.start,
            methods=["POST"],
            status_code=201,
            summary="Start a run",
            response_class=Response,
            responses={
                201: answer(openapi.Run, "The run is in the store.", **_RUN_HEADERS),
                200: answer(openapi.Run, "The same request had started it before.", **_RUN_HEADERS),
                **errors(404, 409, 423, 429, *BODY),
            },
        )
        for path, handler, model, summary, more in (
            ("/runs", self.list_runs, openapi.Runs, "List runs, newest first", ()),
            ("/runs/{run_id}", self.get, openapi.Run, "What is kept of a run", (404,)),
            ("/runs/{run_id}/tree", self.tree, openapi.Tree, "A run and all its descendants", (404,)),
            (
                "/runs/{run_id}/receipt",
                self.receipt,
                openapi.RunReceipt,
                "What became of the stop of a run",
                (404, 409),
            ),
            ("/agents", self.agents, openapi.AgentList, "The agents that can be started", ()),
        ):
            router.add_api_route(
                path,
                handler,
                methods=["GET"],
                summary=summary,
                response_class=Response,
                responses={200: answer(model, summary + "."), **errors(*more)},
            )
        router.add_api_route(
            "/events",
            self.changes,
            methods=["GET"],
            summary="Follow what changes in any run (Server-Sent Events)",
            response_class=Response,
            responses={
                200: {
                    "description": "`hello`, then `run` for every run that changes and `flight` for what is in flight.",
                    "content": {"text/event-stream": {"schema": _EVENT}},
                },
                **errors(429),
            },
        )
        router.add_api_route(
            "/runs/{run_id}/events",
            self.events,
            methods=["GET"],
            summary="Follow a run (Server-Sent Events)",
            response_class=Response,
            responses={
                200: {
                    "description": "The events after a sequence number, then live, until `done`.",
                    "content": {
                        "text/event-stream": {
                            "schema": _EVENT,
                            "example": 'id: 1\nevent: status\ndata: {"runId":"3f2a","seq":1,"at":1.0,'
                            '"type":"status","data":{"status":"running"}}\n\n',
                        }
                    },
                },
                204: {"description": "The run is over and you have seen its end."},
                **errors(404, 429),
            },
        )

    async def start(self, request: Request, body: Annotated[StartBody, Body()]) -> Response:
        """Start an agent as a run. With your own `runId` you can repeat the request, and stop the run at any time."""
        caller = caller_of(request, Scope.START)
        if not caller.sees(body.owner) and body.owner is not None:
            raise Problem(403, "foreign_owner", "you may only start your own runs: leave out the owner")
        bounds = self._backend.limits
        options = StartOptions(
            name=body.agent,
            owner=body.owner if caller.owner is None else caller.owner,
            labels=body.labels,
            run_id=None if body.run_id is None else own_id(caller, body.run_id),
            key=body.key,
            limits=bounds.limits(None if body.limits is None else body.limits.to_limits()),
            policy=bounds.policy(None if body.policy is None else body.policy.to_policy()),
            isolation=body.isolation,
            on_disconnect=body.on_disconnect,
        )
        arguments = body.input if "input" in body.model_fields_set else NOTHING
        run_id, is_new = await self._backend.start(body.agent, arguments, options)
        record = await self._backend.record(run_id, caller)
        headers = {"Stoppable-Run-Id": run_id, "Location": f"{quote(request.scope['path'].rstrip('/'))}/{run_id}"}
        return json_response(record, 201 if is_new else 200, headers)

    async def list_runs(
        self,
        request: Request,
        status: Annotated[list[Status] | None, Query(description="Any of these.", max_length=10)] = None,
        agent: Annotated[str | None, Query(max_length=256)] = None,
        label: Annotated[
            list[Label] | None, Query(description="All of these, each as `key:value`.", max_length=32)
        ] = None,
        parent: Annotated[str | None, Query(pattern=RUN_ID, description="Children of this run.")] = None,
        owner: Annotated[str | None, Query(max_length=256)] = None,
        key: Annotated[str | None, Query(max_length=4096, description="The turns of this conversation.")] = None,
        roots: Annotated[bool, Query(description="Only runs that no other run started.")] = False,  # noqa: FBT002 - a query
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$", description="From the part before.")] = None,
    ) -> Response:
        """List summaries of the runs that match all given criteria; `/runs/{run_id}` has the whole record."""
        caller = caller_of(request, Scope.READ)
        if owner is not None and not caller.sees(owner):
            return json_response(Summaries())
        if parent is not None and caller.owner is not None:
            try:
                parent = (await self._backend.record(parent, caller)).id
            except RunNotFound:
                return json_response(Summaries())
        wanted = Filter(
            status=frozenset(status or ()),
            name=agent,
            owner=caller.owner if owner is None else owner,
            labels={name: value for name, _, value in (one.partition(":") for one in label or ())},
            parent_id=parent,
            key=key,
            roots=roots,
        )
        page = await self._backend.supervisor.list(wanted, cursor=cursor, limit=limit)
        return json_response(Summaries(runs=await self._with_in_flight(page.runs), cursor=page.cursor))

    async def _with_in_flight(self, runs: Sequence[RunSummary]) -> tuple[RunSummary, ...]:
        now = await self._backend.supervisor.in_flight([run.id for run in runs if not run.over])
        return tuple(replace(run, in_flight=now.get(run.id, ())) for run in runs)

    async def get(self, request: Request, run_id: RunIdPath) -> Response:
        """Return the record of a run."""
        caller = caller_of(request, Scope.READ)
        record = await self._visible(caller, await self._backend.record(run_id, caller))
        return json_response(record, headers={"Stoppable-Run-Id": record.id})

    async def _visible(self, caller: Principal, record: RunRecord) -> RunRecord:
        return await visible_record(self._backend.supervisor, caller, record)

    async def tree(self, request: Request, run_id: RunIdPath) -> Response:
        """Return a run and all its descendants in short, parents before children."""
        caller = caller_of(request, Scope.READ)
        record = await self._backend.record(run_id, caller)
        found = [run for run in await self._backend.supervisor.tree(record.id) if caller.sees_run(run)]
        return json_response({"runs": await self._with_in_flight(found)})

    async def receipt(self, request: Request, run_id: RunIdPath) -> Response:
        """Return the receipt of the stops of a run so far; 409 if it was not stopped."""
        caller = caller_of(request, Scope.READ)
        receipt = _receipt(await self._backend.record(run_id, caller))
        return json_response(await visible_receipt(self._backend.supervisor, caller, receipt))

    async def agents(self, request: Request) -> Response:
        """List the agents that can be started."""
        caller_of(request, Scope.READ)
        return json_response({"agents": self._backend.registry.described()})

    async def changes(
        self,
        request: Request,
        after: Annotated[int | None, Query(ge=0, le=2**53, description="Only what changed after this place.")] = None,
        last_event_id: Annotated[
            int | None, Header(ge=0, le=2**53, description="What a browser sends when it resumes.")
        ] = None,
    ) -> Response:
        """Follow all runs that the caller may see: a summary of each that changes, and what is in flight."""
        caller = caller_of(request, Scope.READ)
        since = after if last_event_id is None else last_event_id
        view = ChangesView(self._backend.supervisor, caller.owner, resumes=since is not None)
        return open_stream(self._backend.streams, view, since or 0, caller.owner)

    async def events(
        self,
        request: Request,
        run_id: RunIdPath,
        after: Annotated[int, Query(ge=0, le=2**53, description="Only events after this number.")] = 0,
        last_event_id: Annotated[int, Header(ge=0, le=2**53, description="What a browser sends when it resumes.")] = 0,
        tree: Annotated[bool, Query(description="With all its descendants; ids are places in the store then.")] = False,  # noqa: FBT002 - a query
    ) -> Response:
        """Follow a run. Leaving the stream stops it only if it was started with `onDisconnect: stop`."""
        caller = caller_of(request, Scope.READ)
        record = await self._backend.record(run_id, caller)
        if Scope.STOP not in caller.scopes:
            record = replace(record, on_disconnect="keep")  # leaving must not bypass the scope
        view = TreeView(record, caller.owner) if tree else RunView(record)
        return await resume_stream(self._backend.streams, view, last_event_id or after, caller.owner)


def _receipt(record: RunRecord) -> Receipt:
    if record.stop is None:
        raise Problem(409, "not_stopped", f"run {record.id} was not stopped, so it has no receipt")
    given = Answer.ACCEPTED if record.receipt is None else record.receipt.answer
    return receipt_of(record, given, record.status, record.ended_at)

"""Runs, stops, holds and the audit over HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, cast
from urllib.parse import quote

from fastapi import APIRouter, Body, Header, Path, Query, Request
from pydantic import StringConstraints
from starlette.responses import Response

from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Status
from stoppable.errors import HoldNotFound, RunNotFound
from stoppable.records import AuditEntry, Filter, IfUnknown, RunRecord, RunSummary, Summaries, to_json
from stoppable.server import schemas
from stoppable.server.access import Principal, Scope, caller_of, own_id, visible_receipt, visible_record
from stoppable.server.backend import Backend
from stoppable.server.hosted_agents import NOTHING
from stoppable.server.responses import Problem, json_response
from stoppable.server.schemas import BODY, RUN_ID, Seconds, StartBody, StopBody, StopsBody, add_route, answer, errors
from stoppable.server.sse.feeds import RunView, TreeView
from stoppable.server.sse.run_changes import ChangesView
from stoppable.server.sse.streams import open_stream, resume_stream
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
_EXAMPLE = (
    'id: 1\nevent: status\ndata: {"runId":"3f2a","seq":1,"at":1.0,"type":"status","data":{"status":"running"}}\n\n'
)


def _stream(description: str, **more: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/event-stream": {"schema": _EVENT, **more}}}


class RunRoutes:
    """The routes that start, list, show and follow runs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def add_to(self, router: APIRouter) -> None:
        """Register the routes."""
        start_responses = {
            201: answer(schemas.Run, "The run is in the store.", **_RUN_HEADERS),
            200: answer(schemas.Run, "The same request had started it before.", **_RUN_HEADERS),
            **errors(404, 409, 423, 429, *BODY),
        }
        add_route(router, "POST", "/runs", self.start, "Start a run", start_responses, 201)
        for path, handler, model, summary, more in (
            ("/runs", self.list_runs, schemas.Runs, "List runs, newest first", ()),
            ("/runs/{run_id}", self.get, schemas.Run, "What is kept of a run", (404,)),
            ("/runs/{run_id}/tree", self.tree, schemas.Tree, "A run and all its descendants", (404,)),
            (
                "/runs/{run_id}/receipt",
                self.receipt,
                schemas.RunReceipt,
                "What became of the stop of a run",
                (404, 409),
            ),
            ("/agents", self.agents, schemas.AgentList, "The agents that can be started", ()),
            ("/whoami", self.whoami, schemas.Caller, "Who is calling, and what this caller may do", ()),
        ):
            responses = {200: answer(model, summary + "."), **errors(*more)}
            add_route(router, "GET", path, handler, summary, responses)
        changes = "`hello`, then `run` for every run that changes and `flight` for what is in flight."
        summary = "Follow what changes in any run (Server-Sent Events)"
        add_route(router, "GET", "/events", self.changes, summary, {200: _stream(changes), **errors(429)})
        events = {
            200: _stream("The events after a sequence number, then live, until `done`.", example=_EXAMPLE),
            204: {"description": "The run is over and you have seen its end."},
            **errors(404, 429),
        }
        add_route(router, "GET", "/runs/{run_id}/events", self.events, "Follow a run (Server-Sent Events)", events)

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
        matching = Filter(
            status=frozenset(status or ()),
            agent=agent,
            owner=caller.owner if owner is None else owner,
            labels={name: value for name, _, value in (one.partition(":") for one in label or ())},
            parent_id=parent,
            key=key,
            roots=roots,
        )
        page = await self._backend.supervisor.list(matching, cursor=cursor, limit=limit)
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
        runs = [run for run in await self._backend.supervisor.tree(record.id) if caller.sees_run(run)]
        return json_response({"runs": await self._with_in_flight(runs)})

    async def receipt(self, request: Request, run_id: RunIdPath) -> Response:
        """Return the receipt of the stops of a run so far; 409 if it was not stopped."""
        caller = caller_of(request, Scope.READ)
        receipt = _receipt(await self._backend.record(run_id, caller))
        return json_response(await visible_receipt(self._backend.supervisor, caller, receipt))

    async def agents(self, request: Request) -> Response:
        """List the agents that can be started."""
        caller_of(request, Scope.READ)
        return json_response({"agents": self._backend.registry.describe()})

    async def whoami(self, request: Request) -> Response:
        """Return whose runs the caller sees, its name in receipts, and its scopes."""
        caller = caller_of(request, Scope.READ)
        scopes = [scope for scope in Scope if scope in caller.scopes]
        return json_response(
            {"owner": caller.owner, "seesAll": caller.sees_all, "actor": caller.actor, "scopes": scopes}
        )

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
    previous = Answer.ACCEPTED if record.receipt is None else record.receipt.answer
    return receipt_of(record, previous, record.status, record.ended_at)


_WAIT_LIMIT = 300.0
_DEFAULT = StopBody()


class StopRoutes:
    """The routes for stops, holds and the audit."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._supervisor = backend.supervisor

    def add_to(self, router: APIRouter) -> None:
        """Register the routes."""
        stop_responses = {
            202: answer(schemas.Stopped, "The stop is in the store; it takes effect whatever happens now."),
            200: answer(schemas.Stopped, "The run is over; the receipt is final."),
            **errors(404, *BODY),
        }
        add_route(router, "POST", "/runs/{run_id}/stop", self.stop, "Stop a run with its subtree", stop_responses, 202)
        bulk_responses = {200: answer(schemas.BulkStopped, "What was stopped, or would be."), **errors(*BODY)}
        add_route(router, "POST", "/stops", self.stop_where, "Stop every run that matches", bulk_responses)
        hold_responses = {200: answer(schemas.Holds, "Oldest first."), **errors()}
        add_route(router, "GET", "/holds", self.holds, "The holds that are in force", hold_responses)
        release_responses = {200: answer(schemas.PlacedHold, "It is released."), **errors(404)}
        add_route(router, "DELETE", "/holds/{hold_id}", self.release, "Release a hold", release_responses)
        audit_responses = {200: answer(schemas.Audit, "In order; `after` begins the next part."), **errors()}
        add_route(router, "GET", "/audit", self.audit, "Who stopped, held and released what", audit_responses)

    async def stop(
        self,
        request: Request,
        run_id: RunIdPath,
        body: Annotated[StopBody | None, Body()] = None,
        wait: Annotated[
            Seconds, Query(le=_WAIT_LIMIT, description="Answer when the run is over, or after so many seconds.")
        ] = 0.0,
        if_unknown: Annotated[
            IfUnknown,
            Query(
                alias="ifUnknown", description="With `wait` the stop waits a minute for a run that is not there yet."
            ),
        ] = None,
    ) -> Response:
        """Stop a run. The same request again changes nothing; a harder mode escalates."""
        caller = caller_of(request, Scope.STOP)
        options = body or _DEFAULT
        with self._backend.shares.wait(caller.owner, request.scope, wait) as seconds:
            stop = partial(
                self._supervisor.stop,
                mode=options.mode,
                reason=options.reason,
                actor=caller.actor,
                grace=self._backend.limits.grace(options.grace),
                wait=seconds,
                owner=caller.owner,
            )
            receipt = await self._stop(stop, caller, run_id, if_unknown)
        receipt = await visible_receipt(self._supervisor, caller, receipt)
        body_json = {
            "runId": receipt.run_id,
            "status": receipt.status.value if receipt.final else "stopping",
            "receipt": receipt,
        }
        return json_response(body_json, 200 if receipt.final else 202, {"Stoppable-Run-Id": receipt.run_id})

    @staticmethod
    async def _stop(stop: partial[Any], caller: Principal, run_id: str, if_unknown: IfUnknown) -> Receipt:
        """Stop a run by its id, or by the id that the caller gave it or will give it."""
        tagged_id = own_id(caller, run_id)
        if tagged_id != run_id:
            with contextlib.suppress(RunNotFound):
                return cast("Receipt", await stop(run_id))
            if if_unknown == "wait":  # an app that starts its runs itself gives them the id without the tag
                await stop(run_id, if_unknown=if_unknown)
        try:
            return cast("Receipt", await stop(tagged_id, if_unknown=if_unknown))
        except RunNotFound:
            raise RunNotFound(run_id) from None

    async def stop_where(
        self,
        request: Request,
        body: Annotated[StopsBody, Body()],
        idempotency_key: Annotated[
            str | None, Header(min_length=1, max_length=256, description="The same request again gets the same answer.")
        ] = None,
        wait: Annotated[
            Seconds, Query(le=_WAIT_LIMIT, description="Answer when all runs are over, or after so many seconds.")
        ] = 0.0,
    ) -> Response:
        """Stop every run that matches, with preview (`dryRun`) and admission gate (`hold`)."""
        caller = caller_of(request, Scope.STOP)
        if body.hold:
            caller.require(Scope.HOLD)
        if body.selector.owner is not None and not caller.sees(body.selector.owner):
            raise Problem(403, "foreign_owner", "you may only stop your own runs: leave out the owner")
        # A hold without an owner would refuse the starts of other owners.
        selector = body.selector.to_selector(caller.owner)
        with self._backend.shares.wait(caller.owner, request.scope, wait) as seconds:
            bulk_stop = await self._supervisor.stop_where(
                owner=selector.owner,
                labels=selector.labels,
                agent=selector.agent,
                key=selector.key,
                all=selector.all,
                mode=body.mode,
                reason=body.reason,
                actor=caller.actor,
                grace=self._backend.limits.grace(body.grace),
                hold=body.hold,
                dry_run=body.dry_run,
                if_unknown=body.if_unknown if selector.is_conversation else "ignore",
                wait=seconds,
                idempotency_key=None if idempotency_key is None else _key(caller, idempotency_key, body),
                within=caller.owner,
            )
        hold = None if bulk_stop.hold is None else to_json(bulk_stop.hold)
        receipts = [await visible_receipt(self._supervisor, caller, receipt) for receipt in bulk_stop]
        answer_json = {"dryRun": body.dry_run, "receipts": receipts, "hold": hold, "waitsUntil": bulk_stop.waits_until}
        return json_response(answer_json)

    async def holds(self, request: Request) -> Response:
        """List the holds that are in force."""
        caller = caller_of(request, Scope.READ)
        holds = [hold for hold in await self._supervisor.holds() if caller.sees(hold.selector.owner)]
        return json_response({"holds": [to_json(hold) for hold in holds]})

    async def release(
        self, request: Request, hold_id: Annotated[str, Path(description="The id of a hold.", pattern=RUN_ID)]
    ) -> Response:
        """Remove a hold, so that new runs are allowed again."""
        caller = caller_of(request, Scope.HOLD)
        if caller.owner is not None:
            hold = next((hold for hold in await self._supervisor.holds() if hold.id == hold_id), None)
            if hold is None or not caller.sees(hold.selector.owner):
                raise HoldNotFound(hold_id)
        return json_response(to_json(await self._supervisor.release(hold_id, caller.actor)))

    async def audit(
        self,
        request: Request,
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Return the audit: who stopped, held and released what, when, why, and with what result."""
        caller = caller_of(request, Scope.AUDIT)
        page = await self._supervisor.audit(after, limit)
        entries = [to_json(entry) for entry in page if _sees(caller, entry)]
        # Where the next page begins, even if this one has nothing for the caller.
        return json_response({"entries": entries, "after": page[-1].id if len(page) == limit else None})


def _sees(caller: Principal, entry: AuditEntry) -> bool:
    """Return whether a caller may see an entry; the entry itself says whose run it is about."""
    if caller.owner is None:
        return True
    about = entry.target.get("selector", entry.result)
    return bool(about.get("owner") == caller.owner)


def _key(caller: Principal, key: str, body: StopsBody) -> str:
    """Return an idempotency key that is unique to the caller and the request."""
    parts = (caller.owner or "", key, json.dumps(body.model_dump(), sort_keys=True))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()

"""Stops, holds and the audit over HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import partial
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Body, Header, Path, Query, Request
from starlette.responses import Response

from stoppable._core.stop import Receipt
from stoppable.errors import HoldNotFound, RunNotFound
from stoppable.records import AuditEntry, Hold, to_json
from stoppable.server import openapi
from stoppable.server.access import Principal, Scope, caller_of, own_id, visible_receipt
from stoppable.server.backend import Backend
from stoppable.server.openapi import BODY, answer, errors
from stoppable.server.requests import RUN_ID, Seconds, StopBody, StopsBody
from stoppable.server.responses import Problem, json_response
from stoppable.server.run_routes import RunIdPath

_WAIT_LIMIT = 300.0
_DEFAULT = StopBody()


class StopRoutes:
    """The routes for stops, holds and the audit."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._supervisor = backend.supervisor

    def add_to(self, router: APIRouter) -> None:
        """Add them."""
        router.add_api_route(
            "/runs/{run_id}/stop",
            self.stop,
            methods=["POST"],
            status_code=202,
            summary="Stop a run with its subtree",
            response_class=Response,
            responses={
                202: answer(openapi.Stopped, "The stop is in the store; it takes effect whatever happens now."),
                200: answer(openapi.Stopped, "The run is over; the receipt is final."),
                **errors(404, *BODY),
            },
        )
        router.add_api_route(
            "/stops",
            self.stop_where,
            methods=["POST"],
            summary="Stop every run that matches",
            response_class=Response,
            responses={
                200: answer(openapi.BulkStopped, "What was stopped, or would be."),
                **errors(*BODY),
            },
        )
        router.add_api_route(
            "/holds",
            self.holds,
            methods=["GET"],
            summary="The holds that are in force",
            response_class=Response,
            responses={200: answer(openapi.Holds, "Oldest first."), **errors()},
        )
        router.add_api_route(
            "/holds/{hold_id}",
            self.release,
            methods=["DELETE"],
            summary="Release a hold",
            response_class=Response,
            responses={200: answer(openapi.PlacedHold, "It is released."), **errors(404)},
        )
        router.add_api_route(
            "/audit",
            self.audit,
            methods=["GET"],
            summary="Who stopped, held and released what",
            response_class=Response,
            responses={200: answer(openapi.Audit, "In order; `after` begins the next part."), **errors()},
        )

    async def stop(
        self,
        request: Request,
        run_id: RunIdPath,
        body: Annotated[StopBody | None, Body()] = None,
        wait: Annotated[
            Seconds, Query(le=_WAIT_LIMIT, description="Answer when the run is over, or after so many seconds.")
        ] = 0.0,
        if_unknown: Annotated[
            Literal["refuse", "hold"],
            Query(
                alias="ifUnknown", description="With `hold` the stop waits a minute for a run that is not there yet."
            ),
        ] = "refuse",
    ) -> Response:
        """Stop a run. The same request again changes nothing; a harder mode escalates."""
        caller = caller_of(request, Scope.STOP)
        wanted = body or _DEFAULT
        with self._backend.shares.wait(caller.owner, request.scope, wait) as seconds:
            stop = partial(
                self._supervisor.stop,
                mode=wanted.mode,
                reason=wanted.reason,
                actor=caller.actor,
                grace=self._backend.limits.grace(wanted.grace),
                wait=seconds,
                owner=caller.owner,
            )
            receipt = await self._stop(stop, caller, run_id, may_wait=if_unknown == "hold")
        receipt = await visible_receipt(self._supervisor, caller, receipt)
        told = {
            "runId": receipt.run_id,
            "status": receipt.status.value if receipt.final else "stopping",
            "receipt": receipt,
        }
        return json_response(told, 200 if receipt.final else 202, {"Stoppable-Run-Id": receipt.run_id})

    @staticmethod
    async def _stop(stop: partial[Any], caller: Principal, run_id: str, *, may_wait: bool) -> Receipt:
        """Stop a run by its id, or by the id that the caller gave it or will give it."""
        given = own_id(caller, run_id)
        if given != run_id:
            with contextlib.suppress(RunNotFound):
                return cast("Receipt", await stop(run_id))
            if may_wait:  # an app that starts its runs itself gives them the id without the tag
                await stop(run_id, if_unknown_hold=True)
            if may_wait:  # an app that starts its runs itself gives them the id without the tag
                await stop(run_id, if_unknown_hold=True)
        try:
            return cast("Receipt", await stop(given, if_unknown_hold=may_wait))
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
            stopped = await self._supervisor.stop_where(
                owner=selector.owner,
                labels=selector.labels,
                name=selector.name,
                key=selector.key,
                all=selector.all,
                mode=body.mode,
                reason=body.reason,
                actor=caller.actor,
                grace=self._backend.limits.grace(body.grace),
                hold=body.hold,
                dry_run=body.dry_run,
                if_unknown_hold=body.waits_for_run if selector.is_conversation else False,
                wait=seconds,
                idempotency_key=None if idempotency_key is None else _key(caller, idempotency_key, body),
                within=caller.owner,
            )
        hold = None if stopped.hold is None else _told_hold(stopped.hold)
        receipts = [await visible_receipt(self._supervisor, caller, receipt) for receipt in stopped]
        told = {"dryRun": body.dry_run, "receipts": receipts, "hold": hold, "waitsUntil": stopped.waits_until}
        return json_response(told)

    async def holds(self, request: Request) -> Response:
        """List the holds that are in force."""
        caller = caller_of(request, Scope.READ)
        holds = [hold for hold in await self._supervisor.holds() if caller.sees(hold.selector.owner)]
        return json_response({"holds": [_told_hold(hold) for hold in holds]})

    async def release(
        self, request: Request, hold_id: Annotated[str, Path(description="The id of a hold.", pattern=RUN_ID)]
    ) -> Response:
        """Remove a hold, so that new runs are allowed again."""
        caller = caller_of(request, Scope.HOLD)
        if caller.owner is not None:
            placed = next((hold for hold in await self._supervisor.holds() if hold.id == hold_id), None)
            if placed is None or not caller.sees(placed.selector.owner):
                raise HoldNotFound(hold_id)
        return json_response(_told_hold(await self._supervisor.release(hold_id, caller.actor)))

    async def audit(
        self,
        request: Request,
        after: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Response:
        """Return the audit: who stopped, held and released what, when, why, and with what result."""
        caller = caller_of(request, Scope.AUDIT)
        found = await self._supervisor.audit(after, limit)
        entries = [_told_entry(entry) for entry in found if _sees(caller, entry)]
        # Where the next page begins, even if this one has nothing for the caller.
        return json_response({"entries": entries, "after": found[-1].id if len(found) == limit else None})


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


def _told_hold(hold: Hold) -> dict[str, Any]:
    told: dict[str, Any] = to_json(hold)
    return {**told, "selector": _told_selector(told["selector"])}


def _told_entry(entry: AuditEntry) -> dict[str, Any]:
    told: dict[str, Any] = to_json(entry)
    if "selector" in told["target"]:
        told["target"]["selector"] = _told_selector(told["target"]["selector"])
    return told


def _told_selector(selector: dict[str, Any]) -> dict[str, Any]:
    # The agent of a start is the name of its run.
    return {("agent" if name == "name" else name): value for name, value in selector.items()}

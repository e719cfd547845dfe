"""Every call of the HTTP interface as a plan: what to send, when to retry, and how to read the response.

A plan is a generator that yields a Request, or a number of seconds to wait, and is sent the Response, or thrown the
connection error. It does no input or output, so the async and the blocking client are thin shells around the same
plans.

Everything may be sent again: a repeated stop changes nothing (G10), a start carries an id that the client made, and a
bulk stop carries a key.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote

from stoppable import _json
from stoppable._core import clock
from stoppable._core.ids import new_id
from stoppable._core.policy import Limits, Policy
from stoppable._core.policy import seconds as checked_seconds
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.client import answers
from stoppable.client.agents import AgentInfo
from stoppable.client.errors import ServerUnreachable
from stoppable.errors import HoldNotFound, InvalidArgument, RunNotFound
from stoppable.records import AuditEntry, Hold, RunRecord, RunSummary, Selector, Summaries, run_from_json, to_json

if TYPE_CHECKING:
    from stoppable.supervisor.selection import BulkStop

T = TypeVar("T")

_FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
_LARGEST_PAGE = 1000
TRY_AGAIN = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
"""Responses of a server, or of a proxy in front of it, after which a retry may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, for either client."""

    method: str
    path: str
    params: Sequence[tuple[str, str]] = ()
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    subject: str = ""
    """The id of the run or hold that it is about."""
    patience: float = 0.0
    """Seconds that the server was asked to wait, on top of the usual timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What came back."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def header(self, name: str) -> str:
        """Return a header, or an empty string."""
        return next((value for key, value in self.headers.items() if key.lower() == name), "")

    def read(self, made: Callable[[Any], T]) -> T:
        """Return what ``made`` makes of the body, or raise an error: this may not be a stoppable server."""
        return answers.read(self.status, self.content, made)


class Disconnected(Exception):
    """The connection could not be made, or broke before the response was complete."""


Plan: TypeAlias = Generator["Request | float", Response, T]


class Calls:
    """The plans of one server."""

    def __init__(self, url: str, retry_seconds: float) -> None:
        self.url = url
        self._retry_seconds = checked_seconds(retry_seconds, "retry_seconds")

    # Sending

    def send(self, request: Request) -> Plan[Response]:
        """Send a request until it is answered or the retry time is over."""
        pauses = self.pauses()
        while True:
            try:
                response = yield request
            except Disconnected as error:
                pause = next(pauses, None)
                if pause is None:
                    raise ServerUnreachable(self.url, str(error)) from error
            else:
                pause = next(pauses, None) if response.status in TRY_AGAIN else None
                if pause is None:
                    answers.check(request.subject, response.status, response.content)
                    return response
                pause = max(pause, _retry_after(response))
            yield pause

    def pauses(self) -> Iterator[float]:
        """Yield how long to wait before each retry, longer each time, until the retry time is over."""
        deadline, pause = clock.now() + self._retry_seconds, _FIRST_PAUSE
        while clock.now() < deadline:
            yield random.uniform(pause / 2, pause)  # noqa: S311 - spreads clients, guards nothing
            pause = min(2 * pause, LONGEST_PAUSE)

    # Runs

    def start(self, agent: str, given: Any, options: StartOptions) -> Plan[RunRecord]:
        """Start a run under the id in the options, which makes it repeatable."""
        response = yield from self.send(
            Request(method="POST", path="/runs", subject=options.run_id, body=options.body(agent, given))
        )
        return response.read(run_from_json)

    def get(self, run_id: str) -> Plan[RunRecord]:
        """Return the record of a run."""
        response = yield from self.send(Request(method="GET", path=_run(run_id), subject=run_id))
        return response.read(run_from_json)

    def tree(self, run_id: str) -> Plan[tuple[RunSummary, ...]]:
        """Return a run and all its descendants in short, parents before children."""
        response = yield from self.send(Request(method="GET", path=f"{_run(run_id)}/tree", subject=run_id))
        return response.read(lambda body: _summaries(body).runs)

    def receipt(self, run_id: str) -> Plan[Receipt | None]:
        """Return the receipt of the stops of a run so far, or None if it was not stopped."""
        try:
            response = yield from self.send(Request(method="GET", path=f"{_run(run_id)}/receipt", subject=run_id))
        except answers.NotStopped:
            return None
        return response.read(partial(_json.load, Receipt))

    def list(self, wanted: Wanted) -> Plan[Summaries]:
        """Return summaries of the matching runs, newest first."""
        response = yield from self.send(Request(method="GET", path="/runs", params=wanted.params()))
        return response.read(_summaries)

    def agents(self) -> Plan[tuple[str, ...]]:
        """Return the names of the agents that can be started."""
        response = yield from self.send(Request(method="GET", path="/agents"))
        return response.read(lambda body: tuple(one["name"] for one in answers.listed(body, "agents")))

    def agent_infos(self) -> Plan[tuple[AgentInfo, ...]]:
        """Return the agents that can be started, with their input schemas."""
        response = yield from self.send(Request(method="GET", path="/agents"))
        return response.read(lambda body: tuple(AgentInfo.of(one) for one in answers.listed(body, "agents")))

    # Stopping

    def stop(
        self,
        run_id: str,
        mode: str,
        reason: str | None,
        grace: float | None,
        wait: float | None,
        *,
        if_unknown_hold: bool,
    ) -> Plan[Receipt]:
        """Stop a run with its subtree."""
        params = [("wait", str(checked_seconds(wait, "wait")))] if wait else []
        params += [("ifUnknown", "hold")] if if_unknown_hold else []
        body = {"mode": Mode.of(mode).value, "reason": reason, "grace": grace}
        request = Request(
            method="POST",
            path=f"{_run(run_id)}/stop",
            params=params,
            body=_given(body),
            subject=run_id,
            patience=wait or 0.0,
        )
        response = yield from self.send(request)
        return response.read(lambda body: _json.load(Receipt, body["receipt"]))

    def stop_where(
        self,
        selector: Selector,
        mode: str,
        reason: str | None,
        grace: float | None,
        idempotency_key: str | None,
        wait: float | None,
        *,
        hold: bool,
        dry_run: bool,
        if_unknown_hold: bool | None,
    ) -> Plan[BulkStop]:
        """Stop every run that a selector matches."""
        body = {
            "selector": _selector(selector),
            "mode": Mode.of(mode).value,
            "reason": reason,
            "grace": grace,
            "hold": hold,
            "dryRun": dry_run,
            "ifUnknown": None if if_unknown_hold is None else "hold" if if_unknown_hold else "ignore",
        }
        request = Request(
            method="POST",
            path="/stops",
            params=[("wait", str(checked_seconds(wait, "wait")))] if wait else [],
            body=_given(body),
            headers={"Idempotency-Key": idempotency_key or new_id()},
            patience=wait or 0.0,
        )
        response = yield from self.send(request)
        return response.read(_bulk_stop)

    def holds(self) -> Plan[tuple[Hold, ...]]:
        """Return the holds that are in force."""
        response = yield from self.send(Request(method="GET", path="/holds"))
        return response.read(lambda body: tuple(answers.hold(one) for one in answers.listed(body, "holds")))

    def release(self, hold_id: str) -> Plan[None]:
        """Remove a hold, so that new runs are allowed again."""
        if not hold_id.strip("."):
            raise HoldNotFound(hold_id)
        sending = self.send(Request(method="DELETE", path=f"/holds/{_quoted(hold_id)}", subject=hold_id))
        was_unclear = False
        step = next(sending)
        while True:
            try:
                response = yield step
            except Disconnected as error:
                was_unclear = True
                step = sending.throw(error)
                continue
            try:
                step = sending.send(response)
            except StopIteration as end:
                end.value.read(answers.hold)
                return
            except HoldNotFound:
                if was_unclear:
                    return  # the interrupted attempt has released it
                raise
            except RunNotFound:  # no path of the server takes this id
                raise HoldNotFound(hold_id) from None

    def audit(self, after: int, limit: int) -> Plan[tuple[AuditEntry, ...]]:
        """Return the audit; a page without entries for the caller is not the end."""
        found: list[AuditEntry] = []
        size = limit
        while True:
            params = [("after", str(after)), ("limit", str(size))]
            response = yield from self.send(Request(method="GET", path="/audit", params=params))
            entries, following = response.read(_audit_page)
            found += entries
            if following is None or len(found) >= limit:
                return tuple(found[:limit])
            after, size = following, _LARGEST_PAGE

    def events(self, run_id: str, after: int) -> Request:
        """Return the request for the events after a sequence number."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        return Request(method="GET", path=f"{_run(run_id)}/events", headers=headers, subject=run_id)

    def changes(self, after: int | None) -> Request:
        """Return the request for changes after a place, or from now on."""
        resume = {} if after is None else {"Last-Event-ID": str(after)}
        return Request(method="GET", path="/events", headers={"Accept": "text/event-stream", **resume})


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The options of a start."""

    run_id: str
    owner: str | None = None
    labels: Mapping[str, str] | None = None
    key: str | None = None
    limits: Limits | None = None
    policy: Policy | None = None
    isolation: str | None = None
    on_disconnect: str | None = None

    def body(self, agent: str, given: Any) -> dict[str, Any]:
        """Return the JSON of the request."""
        return {
            "agent": agent,
            **({} if given is None else {"input": given}),
            **_given(
                {
                    "runId": self.run_id,
                    "owner": self.owner,
                    "labels": None if self.labels is None else dict(self.labels),
                    "key": self.key,
                    "limits": None if self.limits is None else to_json(self.limits),
                    "policy": None if self.policy is None else to_json(self.policy),
                    "isolation": self.isolation,
                    "onDisconnect": self.on_disconnect,
                }
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The runs to list."""

    status: Sequence[Status | str] = ()
    agent: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    key: str | None = None
    roots: bool = False
    cursor: str | None = None
    limit: int = 100

    def params(self) -> list[tuple[str, str]]:
        """Return the query of the request."""
        pairs = [("status", Status(one).value) for one in self.status]
        pairs += [("label", f"{key}:{value}") for key, value in self.labels.items()]
        single = {
            "agent": self.agent,
            "owner": self.owner,
            "parent": self.parent,
            "key": self.key,
            "roots": "true" if self.roots else None,
            "cursor": self.cursor,
            "limit": str(self.limit),
        }
        return pairs + list(_given(single).items())


def _summaries(body: Any) -> Summaries:
    return _json.load(Summaries, {"runs": answers.listed(body, "runs"), "cursor": body.get("cursor")})


def _bulk_stop(body: Any) -> BulkStop:
    from stoppable.supervisor.selection import BulkStop  # noqa: PLC0415 - it brings the engine, which no other call needs

    placed = body.get("hold")
    return BulkStop(
        (_json.load(Receipt, one) for one in answers.listed(body, "receipts")),
        None if placed is None else answers.hold(placed),
        body.get("waitsUntil"),
    )


def _audit_page(body: Any) -> tuple[list[AuditEntry], int | None]:
    """Return the entries of a page of the audit, and where the next page begins."""
    return [_json.load(AuditEntry, one) for one in answers.listed(body, "entries")], body["after"]


def _run(run_id: str) -> str:
    if not run_id.strip("."):  # in a path it would have another meaning
        raise RunNotFound(run_id)
    return f"/runs/{_quoted(run_id)}"


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="backslashreplace")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _selector(selector: Selector) -> dict[str, Any]:
    wire = to_json(selector)
    wire["agent"] = wire.pop("name")
    return _given(wire)  # including an empty name: without it the selector would match more runs


def _retry_after(response: Response) -> float:
    text = response.header("retry-after")
    return min(float(text), LONGEST_PAUSE) if text.isdecimal() else 0.0


def encoded(body: Any) -> bytes:
    """Return a body as JSON."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the request has no JSON form: {error}") from error

"""Every call of the HTTP interface as a plan: what to send, when to retry, and how to read the response.

A plan is a generator that yields an HttpRequest, or a number of seconds to wait, and is sent the HttpResponse, or
thrown the connection error. It does no input or output, so the async and the blocking client are thin shells around the
same plans.

Everything may be sent again: a repeated stop changes nothing (G10), a start carries an id that the client made, and a
bulk stop carries a key. Where the server is, and the headers of requests to it, are at the end.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

from stoppable import _json, _secrets
from stoppable._core import clock
from stoppable._core.stop import Receipt
from stoppable._core.values import Limits, Mode, Policy, Status, new_id
from stoppable._core.values import seconds as checked_seconds
from stoppable.client import server_answers as answers
from stoppable.client.server_answers import AgentInfo, ServerUnreachable
from stoppable.errors import HoldNotFound, InvalidArgument, RunNotFound
from stoppable.records import (
    AuditEntry,
    BulkStop,
    Hold,
    IfUnknown,
    RunRecord,
    RunSummary,
    Selector,
    Summaries,
    run_from_json,
    to_json,
)

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
class HttpRequest:
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
class HttpResponse:
    """A response, as either client received it."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def header(self, name: str) -> str:
        """Return a header, or an empty string."""
        return next((value for key, value in self.headers.items() if key.lower() == name), "")

    def read(self, build: Callable[[Any], T]) -> T:
        """Return what ``build`` makes of the body, or raise an error: this may not be a stoppable server."""
        return answers.read(self.status, self.content, build)


class Disconnected(Exception):
    """The connection could not be made, or broke before the response was complete."""


Plan: TypeAlias = Generator["HttpRequest | float", HttpResponse, T]


class CallPlans:
    """The plans of one server."""

    def __init__(self, url: str, retry_seconds: float) -> None:
        self.url = url
        self._retry_seconds = checked_seconds(retry_seconds, "retry_seconds")

    # Sending

    def send(self, request: HttpRequest) -> Plan[HttpResponse]:
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

    def start(self, agent: str, input_value: Any, options: StartRequest) -> Plan[RunRecord]:
        """Start a run under the id in the options, which makes it repeatable."""
        response = yield from self.send(
            HttpRequest(method="POST", path="/runs", subject=options.run_id, body=options.body(agent, input_value))
        )
        return response.read(run_from_json)

    def get(self, run_id: str) -> Plan[RunRecord]:
        """Return the record of a run."""
        response = yield from self.send(HttpRequest(method="GET", path=_run(run_id), subject=run_id))
        return response.read(run_from_json)

    def tree(self, run_id: str) -> Plan[tuple[RunSummary, ...]]:
        """Return a run and all its descendants in short, parents before children."""
        response = yield from self.send(HttpRequest(method="GET", path=f"{_run(run_id)}/tree", subject=run_id))
        return response.read(lambda body: _summaries(body).runs)

    def receipt(self, run_id: str) -> Plan[Receipt | None]:
        """Return the receipt of the stops of a run so far, or None if it was not stopped."""
        try:
            response = yield from self.send(HttpRequest(method="GET", path=f"{_run(run_id)}/receipt", subject=run_id))
        except answers.NotStopped:
            return None
        return response.read(partial(_json.load, Receipt))

    def list(self, query: ListQuery) -> Plan[Summaries]:
        """Return summaries of the matching runs, newest first."""
        response = yield from self.send(HttpRequest(method="GET", path="/runs", params=query.params()))
        return response.read(_summaries)

    def agents(self) -> Plan[tuple[str, ...]]:
        """Return the names of the agents that can be started."""
        response = yield from self.send(HttpRequest(method="GET", path="/agents"))
        return response.read(lambda body: tuple(one["name"] for one in answers.list_in(body, "agents")))

    def agent_infos(self) -> Plan[tuple[AgentInfo, ...]]:
        """Return the agents that can be started, with their input schemas."""
        response = yield from self.send(HttpRequest(method="GET", path="/agents"))
        return response.read(lambda body: tuple(AgentInfo.of(one) for one in answers.list_in(body, "agents")))

    # Stopping

    def stop(
        self,
        run_id: str,
        mode: str,
        reason: str | None,
        grace: float | None,
        wait: float | None,
        *,
        if_unknown: IfUnknown,
    ) -> Plan[Receipt]:
        """Stop a run with its subtree."""
        params = [("wait", str(checked_seconds(wait, "wait")))] if wait else []
        params += [("ifUnknown", if_unknown)] if if_unknown else []
        body = {"mode": Mode.of(mode).value, "reason": reason, "grace": grace}
        request = HttpRequest(
            method="POST",
            path=f"{_run(run_id)}/stop",
            params=params,
            body=_without_none(body),
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
        if_unknown: IfUnknown,
    ) -> Plan[BulkStop]:
        """Stop every run that a selector matches."""
        body = {
            "selector": _selector(selector),
            "mode": Mode.of(mode).value,
            "reason": reason,
            "grace": grace,
            "hold": hold,
            "dryRun": dry_run,
            "ifUnknown": if_unknown,
        }
        request = HttpRequest(
            method="POST",
            path="/stops",
            params=[("wait", str(checked_seconds(wait, "wait")))] if wait else [],
            body=_without_none(body),
            headers={"Idempotency-Key": idempotency_key or new_id()},
            patience=wait or 0.0,
        )
        response = yield from self.send(request)
        return response.read(_bulk_stop)

    def holds(self) -> Plan[tuple[Hold, ...]]:
        """Return the holds that are in force."""
        response = yield from self.send(HttpRequest(method="GET", path="/holds"))
        return response.read(lambda body: tuple(answers.parse_hold(one) for one in answers.list_in(body, "holds")))

    def release(self, hold_id: str) -> Plan[None]:
        """Remove a hold, so that new runs are allowed again."""
        if not hold_id.strip("."):
            raise HoldNotFound(hold_id)
        sending = self.send(HttpRequest(method="DELETE", path=f"/holds/{_quote(hold_id)}", subject=hold_id))
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
                end.value.read(answers.parse_hold)
                return
            except HoldNotFound:
                if was_unclear:
                    return  # the interrupted attempt has released it
                raise
            except RunNotFound:  # no path of the server takes this id
                raise HoldNotFound(hold_id) from None

    def audit(self, after: int, limit: int) -> Plan[tuple[AuditEntry, ...]]:
        """Return the audit; a page without entries for the caller is not the end."""
        entries: list[AuditEntry] = []
        size = limit
        while True:
            params = [("after", str(after)), ("limit", str(size))]
            response = yield from self.send(HttpRequest(method="GET", path="/audit", params=params))
            page, next_after = response.read(_audit_page)
            entries += page
            if next_after is None or len(entries) >= limit:
                return tuple(entries[:limit])
            after, size = next_after, _LARGEST_PAGE

    def events(self, run_id: str, after: int) -> HttpRequest:
        """Return the request for the events after a sequence number."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        return HttpRequest(method="GET", path=f"{_run(run_id)}/events", headers=headers, subject=run_id)

    def changes(self, after: int | None) -> HttpRequest:
        """Return the request for changes after a place, or from now on."""
        resume = {} if after is None else {"Last-Event-ID": str(after)}
        return HttpRequest(method="GET", path="/events", headers={"Accept": "text/event-stream", **resume})


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """The options of a start."""

    run_id: str
    owner: str | None = None
    labels: Mapping[str, str] | None = None
    key: str | None = None
    limits: Limits | None = None
    policy: Policy | None = None
    isolation: str | None = None
    on_disconnect: str | None = None

    def body(self, agent: str, input_value: Any) -> dict[str, Any]:
        """Return the JSON of the request."""
        return {
            "agent": agent,
            **({} if input_value is None else {"input": input_value}),
            **_without_none(
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
class ListQuery:
    """The criteria of a list of runs."""

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
        return pairs + list(_without_none(single).items())


def _summaries(body: Any) -> Summaries:
    return _json.load(Summaries, {"runs": answers.list_in(body, "runs"), "cursor": body.get("cursor")})


def _bulk_stop(body: Any) -> BulkStop:
    hold = body.get("hold")
    return BulkStop(
        (_json.load(Receipt, one) for one in answers.list_in(body, "receipts")),
        None if hold is None else answers.parse_hold(hold),
        body.get("waitsUntil"),
    )


def _audit_page(body: Any) -> tuple[list[AuditEntry], int | None]:
    """Return the entries of a page of the audit, and where the next page begins."""
    return [_json.load(AuditEntry, one) for one in answers.list_in(body, "entries")], body["after"]


def _run(run_id: str) -> str:
    if not run_id.strip("."):  # in a path it would have another meaning
        raise RunNotFound(run_id)
    return f"/runs/{_quote(run_id)}"


def _quote(part: str) -> str:
    return quote(part, safe="", errors="backslashreplace")


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _selector(selector: Selector) -> dict[str, Any]:
    return _without_none(to_json(selector))  # including an empty name: without it the selector would match more runs


def _retry_after(response: HttpResponse) -> float:
    text = response.header("retry-after")
    return min(float(text), LONGEST_PAUSE) if text.isdecimal() else 0.0


def encode(body: Any) -> bytes:
    """Return a body as JSON."""
    try:
        return json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the request has no JSON form: {error}") from error


DEFAULT_URL = "http://127.0.0.1:8420"

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def server_url(url: str | None) -> str:
    """Return the given base URL, or STOPPABLE_URL, or the default address of ``stoppable serve``."""
    address = (url or os.environ.get("STOPPABLE_URL") or DEFAULT_URL).rstrip("/")
    if not _is_address(address):
        raise InvalidArgument(f"{address!r} is not the URL of a server: use one like {DEFAULT_URL}")
    return address


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets or a port that make no sense
        return False


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine, which a proxy cannot reach."""
    return urlsplit(url).hostname in _LOOPBACK


def authorization(api_key: str | None) -> dict[bytes, bytes]:
    """Return the header with the key that was given, or with the key of the environment."""
    key = api_key or _secrets.api_key()
    return {b"Authorization": b"Bearer " + _header(key)} if key else {}


def headers_of(request: HttpRequest) -> dict[bytes, bytes]:
    """Return the headers of one request."""
    headers = {name.encode(): _header(value) for name, value in request.headers.items()}
    if request.body is not None:
        headers[b"Content-Type"] = b"application/json"
    return headers


def _header(text: str) -> bytes:
    """Return a header value; an invalid one would otherwise look like a broken connection."""
    if text != text.strip() or not text.isprintable():
        raise InvalidArgument("the key cannot be sent in a header: remove white space around it and line breaks")
    return text.encode()


def explain(error: Exception) -> str:
    """Return why a connection failed, in a few words."""
    return str(error).strip() or type(error).__name__

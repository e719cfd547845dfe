"""Runs as the clients of this app know them: their names, statuses and events. Fields may be added, never renamed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stoppable import Event, EventType, RunRecord, Status, Supervisor
from stoppable.server import EventEncoder, Message

_STATUS = {
    Status.PENDING: "running",
    Status.RUNNING: "running",
    Status.STOPPING: "running",
    Status.COMPLETED: "success",
    Status.FAILED: "error",
    Status.STOPPED: "stopped",
    Status.LOST: "error",  # something of it may be alive: "stopped" would be a claim
}
_READ = 500


def status_of(record: RunRecord) -> str:
    """Return one of running, success, error and stopped."""
    return _STATUS[record.status]


def error_of(record: RunRecord) -> str | None:
    """Return what went wrong, or who stopped it."""
    outcome = record.outcome
    if outcome is None:
        return None
    if record.status is Status.STOPPED:
        return f"AgentStopped: {outcome.reason}"
    if record.status is Status.LOST:
        nodes = () if record.receipt is None else record.receipt.entries
        alive = [node.name for node in nodes if node.fate in {"abandoned", "unreachable"}]
        return f"StopUnconfirmed: may still be running: {', '.join(alive) or record.name}"
    return None if outcome.error is None else f"{outcome.error.type}: {outcome.error.message}"


def ending_of(record: RunRecord) -> dict[str, Any]:
    """Return what the ``done`` event and the full record both have, so that they cannot differ."""
    outcome = record.outcome
    value = outcome.result if outcome is not None and isinstance(outcome.result, dict) else {}
    return {
        "result": value.get("result"),
        "error": error_of(record),
        "schemaWarnings": value.get("schemaWarnings"),
        "opsLog": None if outcome is None else outcome.partial,
        "unconfirmed": record.status is Status.LOST,
    }


def summary_of(record: RunRecord) -> dict[str, Any]:
    """Return a run as lists show it."""
    given = record.input or {}
    receipt = record.receipt
    return {
        "runId": record.id,
        "agentId": record.labels.get("agentId") or None,
        "agentName": record.name,
        "status": status_of(record),
        "startedAt": _iso(record.started_at or record.created_at),
        "completedAt": _iso(record.ended_at),
        "inputDict": given.get("input_dict", record.metadata.get("inputDict")),
        "error": error_of(record),
        # added to the contract
        "parentId": record.parent_id,
        "stopping": record.status is Status.STOPPING,
        "stopMode": None if record.stop is None else str(record.stop.mode),
        "unconfirmed": record.status is Status.LOST,
        "inFlight": [] if receipt is None or record.over else list(receipt.in_flight),
    }


async def full_record(supervisor: Supervisor, record: RunRecord) -> dict[str, Any]:
    """Return everything that is kept of a run."""
    given = record.input or {}
    events = await trace_of(supervisor, record)
    return {**summary_of(record), "code": given.get("code"), "events": events, **ending_of(record)}


async def trace_of(supervisor: Supervisor, record: RunRecord) -> list[dict[str, Any]]:
    """Return what a run and all that it called have told so far."""
    found, after = [], 0
    while (tail := await supervisor.store.tail(after, _READ, below=record.id)).events:
        found += [told for _, event in tail.events if (told := trace_event(event)) is not None]
        after = tail.events[-1][0]
    return found


def trace_event(event: Event) -> dict[str, Any] | None:
    """Return what clients are shown of an event."""
    if event.type is EventType.PROGRESS and event.data.get("name") == "trace":
        told: dict[str, Any] = event.data["data"]["event"]
        return told
    return None


class TraceStream(EventEncoder):
    """The events of a run as ``run_id``, ``trace`` and ``done``, and how it and what it called go on as ``status``."""

    def first(self, record: RunRecord) -> Message:
        """Say which run it is."""
        return Message("run_id", {"runId": record.id, "status": status_of(record)})

    def event(self, event: Event) -> Message | None:
        """Show what agents tell, and each status."""
        if event.type in {EventType.STATUS, EventType.DONE}:
            status = Status(event.data["status"])
            told = {"runId": event.run_id, "status": _STATUS[status], "stopping": status is Status.STOPPING}
            return Message("status", told)
        shown = trace_event(event)
        return None if shown is None else Message("trace", shown)

    def last(self, record: RunRecord) -> Message:
        """Say how it ended, in the words of the record."""
        return Message("done", {"outcome": status_of(record), **ending_of(record)})


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat()

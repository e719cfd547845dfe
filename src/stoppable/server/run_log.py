"""One line in the log for the start, the stop and the end of each run that this server executes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from stoppable._core.state import Status
from stoppable._engine.threads import to_thread
from stoppable.errors import StoppableError
from stoppable.records import EventType, RunRecord, TreeEvent
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.runs")

_LONGEST = 200
_LOOK_UP_SECONDS = 5.0
_WARNED = {Status.FAILED, Status.LOST}
_VERBS = {Status.RUNNING: "started"}


@contextlib.asynccontextmanager
async def run_log(supervisor: Supervisor) -> AsyncIterator[None]:
    """Log the runs of this server during the block; does nothing if the log level is off."""
    if not _logger.isEnabledFor(logging.INFO):
        yield
        return
    loop = asyncio.get_running_loop()

    def heard(event: TreeEvent) -> None:  # called on the listener's thread, one after the other
        if event.type is EventType.STATUS and Status(event.data["status"]).terminal:
            return  # the event that it is done follows
        look_up = asyncio.run_coroutine_threadsafe(supervisor.get(event.run_id), loop)
        try:
            record = look_up.result(_LOOK_UP_SECONDS)
        except (StoppableError, TimeoutError):  # purged, or the store is busy: skip the line
            look_up.cancel()
            return
        if record.worker == supervisor.worker:
            _tell(event, record)

    listener = await to_thread(supervisor.listen, heard, types={EventType.STATUS, EventType.DONE})
    try:
        yield
    finally:
        await to_thread(listener.close)


def _tell(event: TreeEvent, record: RunRecord) -> None:
    status = Status(event.data["status"])
    facts: dict[str, object] = {
        "runId": record.id,
        "agent": record.name,
        "owner": record.owner,
        "runStatus": status.value,
    }
    told = [f"run {record.id} {_VERBS.get(status, status)}: {_quoted(record.name)}"]
    if record.owner is not None:
        told.append(f"owner {_quoted(record.owner)}")
    if record.parent_id is not None:
        told.append(f"child of {record.parent_id}")
    if record.stop is not None and status not in {Status.RUNNING, Status.PENDING}:
        facts |= {"mode": record.stop.mode.value, "reason": record.stop.reason.message}
        told.append(f"{record.stop.mode} stop{_by(record.stop.reason.actor)}{_why(record.stop.reason.message)}")
    if event.type is EventType.DONE:
        seconds = max(0.0, (record.ended_at or event.at) - record.created_at)
        facts["seconds"] = round(seconds, 3)
        told.append(f"{seconds:.1f} s")
        if record.outcome is not None and record.outcome.error is not None:
            error = record.outcome.error
            facts["errorType"] = error.type
            told.append(f"{error.type}: {_quoted(error.message)}")
    _logger.log(logging.WARNING if status in _WARNED else logging.INFO, "%s", ", ".join(told), extra=facts)


def _by(actor: str | None) -> str:
    return "" if actor is None else f" by {_quoted(actor)}"


def _why(message: str) -> str:
    return f": {_quoted(message)}" if message else ""


def _quoted(text: str) -> str:
    """Return text of an agent or a caller in quotes, so that it cannot imitate the rest of the line."""
    return repr(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")

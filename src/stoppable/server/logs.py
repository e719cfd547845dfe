"""The log of a server: its formats, and one line for the start, the stop and the end of each run."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from stoppable._core.values import Status
from stoppable._engine.threads import to_thread
from stoppable.errors import StoppableError
from stoppable.records import EventType, RunRecord, TreeEvent
from stoppable.supervisor import Supervisor

_FIELDS = (
    *("method", "path", "status", "milliseconds"),  # of a request
    *("runId", "agent", "owner", "runStatus", "mode", "reason", "seconds", "errorType"),  # of a run
)


class PlainFormatter(logging.Formatter):
    """Formats a log line as text; values from clients and agents cannot start a new line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return one line of text, whatever the values contain."""
        return harmless(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback, indented so that none of its lines looks like a log line."""
        return _indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        """Return the stack, indented like a traceback."""
        return _indent(super().formatStack(stack_info))


def harmless(text: str) -> str:
    """Return a text on one line, without characters that control a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _indent(text: str) -> str:
    return "\n".join(f"    | {harmless(line)}" for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """Formats a log line as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON, with the facts about the request or the run as fields."""
        fields: dict[str, object] = {
            "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


@contextlib.contextmanager
def log_to_stderr(*, as_json: bool) -> Iterator[None]:
    """Log to stderr, with the warnings of the HTTP server, unless the program has its own handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    before: list[tuple[logging.Logger, int]] = []
    for name, level in (("stoppable", logging.INFO), ("uvicorn", logging.WARNING), ("asyncio", logging.WARNING)):
        logger = logging.getLogger(name)
        if not logger.hasHandlers():
            before.append((logger, logger.level))
            logger.addHandler(handler)
            logger.setLevel(level)
    try:
        yield
    finally:
        for logger, was in before:
            logger.removeHandler(handler)
            logger.setLevel(was)


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

    def on_event(event: TreeEvent) -> None:  # called on the listener's thread, one after the other
        if event.type is EventType.STATUS and Status(event.data["status"]).terminal:
            return  # the event that it is done follows
        look_up = asyncio.run_coroutine_threadsafe(supervisor.get(event.run_id), loop)
        try:
            record = look_up.result(_LOOK_UP_SECONDS)
        except (StoppableError, TimeoutError):  # purged, or the store is busy: skip the line
            look_up.cancel()
            return
        if record.worker == supervisor.worker:
            _log_event(event, record)

    listener = await to_thread(supervisor.listen, on_event, types={EventType.STATUS, EventType.DONE})
    try:
        yield
    finally:
        await to_thread(listener.close)


def _log_event(event: TreeEvent, record: RunRecord) -> None:
    status = Status(event.data["status"])
    facts: dict[str, object] = {
        "runId": record.id,
        "agent": record.name,
        "owner": record.owner,
        "runStatus": status.value,
    }
    parts = [f"run {record.id} {_VERBS.get(status, status)}: {_quote(record.name)}"]
    if record.owner is not None:
        parts.append(f"owner {_quote(record.owner)}")
    if record.parent_id is not None:
        parts.append(f"child of {record.parent_id}")
    if record.stop is not None and status not in {Status.RUNNING, Status.PENDING}:
        facts |= {"mode": record.stop.mode.value, "reason": record.stop.reason.message}
        parts.append(f"{record.stop.mode} stop{_by(record.stop.reason.actor)}{_why(record.stop.reason.message)}")
    if event.type is EventType.DONE:
        seconds = max(0.0, (record.ended_at or event.at) - record.created_at)
        facts["seconds"] = round(seconds, 3)
        parts.append(f"{seconds:.1f} s")
        if record.outcome is not None and record.outcome.error is not None:
            error = record.outcome.error
            facts["errorType"] = error.type
            parts.append(f"{error.type}: {_quote(error.message)}")
    _logger.log(logging.WARNING if status in _WARNED else logging.INFO, "%s", ", ".join(parts), extra=facts)


def _by(actor: str | None) -> str:
    return "" if actor is None else f" by {_quote(actor)}"


def _why(message: str) -> str:
    return f": {_quote(message)}" if message else ""


def _quote(text: str) -> str:
    """Return text of an agent or a caller in quotes, so that it cannot imitate the rest of the line."""
    return repr(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")

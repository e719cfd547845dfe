"""Log formats: one line per event, as text or JSON."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

_FIELDS = (
    *("method", "path", "status", "milliseconds"),  # of a request
    *("runId", "agent", "owner", "runStatus", "mode", "reason", "seconds", "errorType"),  # of a run
)


class PlainFormatter(logging.Formatter):
    """Formats a log line as text; values from clients and agents cannot start a new line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return one line."""
        return harmless(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the traceback, indented so that none of its lines looks like a log line."""
        return _set_in(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        """Return the stack, indented like a traceback."""
        return _set_in(super().formatStack(stack_info))


def harmless(text: str) -> str:
    """Return a text on one line, without characters that control a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _set_in(text: str) -> str:
    return "\n".join(f"    | {harmless(line)}" for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """Formats a log line as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        told: dict[str, object] = {
            "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


@contextlib.contextmanager
def configured(*, as_json: bool) -> Iterator[None]:
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

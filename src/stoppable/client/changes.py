"""Changes of runs, from the server's stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from stoppable import _json
from stoppable.client.answers import SHAPE_ERRORS
from stoppable.errors import StoppableError
from stoppable.records import RunSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change on the server: a run that changed, or what is in flight."""

    run: RunSummary | None = None
    in_flight: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    """The open boundaries of live runs, by run id; None if unknown."""
    is_all: bool = False
    """Whether live runs that ``in_flight`` does not name have nothing in flight."""
    is_reset: bool = False
    """Whether something may have been missed: list the runs now."""


def change_of(fields: Mapping[str, str]) -> Change | None:
    """Return the change in a message, or None if it is about the stream itself or from a newer version."""
    try:
        data = json.loads(fields.get("data", "null"))
        match fields.get("event"):
            case "hello":
                return Change(is_reset=True) if data["reset"] else None
            case "run":
                return Change(run=_json.load(RunSummary, data))
            case "flight":
                flights = {name: None if now is None else tuple(now) for name, now in data["runs"].items()}
                return Change(in_flight=flights, is_all=data["all"])
            case _:
                return None
    except SHAPE_ERRORS:
        raise StoppableError("the changes of runs cannot be read: is this a stoppable server?") from None

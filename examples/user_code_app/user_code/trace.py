"""What the page shows of a run while it goes on: events in the log of the run, in the shape that clients expect."""

from __future__ import annotations

import contextlib
import contextvars
import io
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import stoppable

_PREVIEW = 4_096
_agents: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("agents", default=())
_room: contextvars.ContextVar[Room | None] = contextvars.ContextVar("room", default=None)


@dataclass(slots=True)
class Room:
    """How much more a run may tell, with all agents that it calls."""

    events: int
    output: int
    is_full: bool = False

    def take(self, size: int) -> bool:
        """Return whether there was room for one more event with so much output."""
        self.events -= 1
        self.output -= size
        return self.events >= 0 and self.output >= 0


def add(kind: str, source: str = "system", size: int = 0, **data: Any) -> None:
    """Tell one event of the current run, unless it has told too much."""
    room = _room.get()
    if room is None or (not room.is_full and room.take(size)):
        _emit(kind, source, **data)
    elif not room.is_full:
        room.is_full = True
        _emit("trace_truncated", "system", message="The run has told too much; what follows is not shown.")


def _emit(kind: str, source: str, **data: Any) -> None:
    agents = _agents.get()
    event = {
        "type": kind,
        "ts": datetime.now(UTC).replace(tzinfo=None).isoformat(),
        "agent_name": agents[-1] if agents else "unknown",
        "depth": len(agents),
        "source": source,
        **data,
    }
    stoppable.emit("trace", event=event)


def error(caught: BaseException) -> None:
    """Tell of an error of the agent's code."""
    text = "".join(traceback.format_exception(caught))
    add("error", exception_type=type(caught).__name__, message=str(caught)[:_PREVIEW], traceback=text[-_PREVIEW:])


@contextlib.contextmanager
def room_for(events: int, output: int) -> Iterator[None]:
    """Bound what the block tells."""
    bound = _room.set(Room(events, output))
    try:
        yield
    finally:
        _room.reset(bound)


@contextlib.contextmanager
def inside(agent: str) -> Iterator[str | None]:
    """Tell everything in the block as of an agent; gives the name of the agent that called it."""
    above = _agents.get()
    bound = _agents.set((*above, agent))
    try:
        yield above[-1] if above else None
    finally:
        _agents.reset(bound)


class Output(io.TextIOBase):
    """Standard output of an agent: each line is an event."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._line = ""

    def write(self, text: str) -> int:
        """Tell every line that is complete."""
        *lines, self._line = (self._line + text)[-_PREVIEW * 16 :].split("\n")
        for line in lines:
            self._tell(line)
        return len(text)

    def flush(self) -> None:
        """Tell what has no end yet."""
        line, self._line = self._line, ""
        if line:
            self._tell(line)

    def _tell(self, line: str) -> None:
        # A thread of some library prints for the run too, and has no context of its own.
        run = add if stoppable.current_run() is not None else lambda *a, **k: self._context.copy().run(add, *a, **k)
        run("stdout", "stdout", len(line), message=line[:_PREVIEW])


def print_to(output: Output) -> Any:
    """Return the ``print`` of an agent that shares its process with others."""

    def print_(*values: object, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False) -> None:  # noqa: ARG001
        print(*values, sep=sep, end=end, file=file or output)

    return print_

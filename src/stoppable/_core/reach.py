"""What a stop reached: the runs of its tree, and what was open, entered or left behind in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from stoppable._core.gate import lock

if TYPE_CHECKING:
    from stoppable._core.boundary import Boundary
    from stoppable._core.node import RunNode

T = TypeVar("T")

Abandoned: TypeAlias = tuple[str, tuple[str, ...]]
"""The name and the stack of a participant that could not be ended."""


class Reach:
    """What a stop reached, in its whole tree or in a part of it. The lists only grow."""

    __slots__ = ("abandoned", "after", "idle", "in_flight", "nodes")

    def __init__(self, nodes: list[RunNode]) -> None:
        self.nodes: list[RunNode] = nodes
        # Lists are created only when needed: most stops need none, and ten thousand at once would make the garbage
        # collector scan everything.
        self.in_flight: Sequence[tuple[RunNode, Boundary]] = ()
        self.idle: Sequence[Boundary] = ()  # of those: streams that were not being read
        self.after: Sequence[tuple[RunNode, str]] = ()
        self.abandoned: Sequence[tuple[RunNode, Abandoned]] = ()

    def note_in_flight(self, run: RunNode, boundary: Boundary) -> None:
        """Record a boundary that was open at the stop."""
        with lock:
            self.in_flight = _appended(self.in_flight, (run, boundary))
            if boundary.is_idle:
                self.idle = _appended(self.idle, boundary)

    def note_after(self, entry: tuple[RunNode, str]) -> None:
        """Record a boundary that was entered after the stop; every stop of its run records the same entry."""
        with lock:
            self.after = _appended(self.after, entry)

    def note_abandoned(self, run: RunNode, name: Abandoned) -> None:
        """Record a participant that could not be ended."""
        with lock:
            self.abandoned = _appended(self.abandoned, (run, name))


def _appended(noted: Sequence[T], entry: T) -> Sequence[T]:
    if not isinstance(noted, list):
        return [entry]
    noted.append(entry)
    return noted


class ByRun:
    """What a stop reached, by run: thousands of runs may want a receipt, and each costs no more than its subtree."""

    __slots__ = ("_abandoned", "_after", "_children", "_in_flight", "_whole")

    def __init__(self, whole: Reach) -> None:
        self._whole = whole
        self._children: _Groups[RunNode] = _Groups(attrgetter("parent"))
        self._in_flight: _Groups[tuple[RunNode, Boundary]] = _Groups(itemgetter(0))
        self._after: _Groups[tuple[RunNode, str]] = _Groups(itemgetter(0))
        self._abandoned: _Groups[tuple[RunNode, Abandoned]] = _Groups(itemgetter(0))

    def children(self, run: RunNode) -> Sequence[RunNode]:
        """Return the children of a run that the stop reached."""
        return self._children.of(run, self._whole.nodes)

    def part(self, run: RunNode) -> Reach:
        """Return what the stop reached in the subtree of a run, in the same order."""
        whole, later = self._whole, [run]
        runs: dict[RunNode, None] = {}  # a child that was added while its tree was being marked is recorded twice
        while later:
            each = later.pop()
            runs[each] = None
            later.extend(reversed(self.children(each)))
        part = Reach(list(runs))
        part.in_flight = [entry for each in runs for entry in self._in_flight.of(each, whole.in_flight)]
        part.after = [entry for each in runs for entry in self._after.of(each, whole.after)]
        part.abandoned = [entry for each in runs for entry in self._abandoned.of(each, whole.abandoned)]
        if whole.idle:
            open_here = {boundary for _, boundary in part.in_flight}
            part.idle = [boundary for boundary in whole.idle if boundary in open_here]
        return part


class _Groups(Generic[T]):
    """The entries of a list that grows, grouped by run; every entry is looked at once."""

    __slots__ = ("_by_run", "_count", "_run_of")

    def __init__(self, run_of: Callable[[T], Any]) -> None:
        self._run_of = run_of
        self._count = 0
        self._by_run: dict[RunNode, list[T]] = {}

    def of(self, run: RunNode, entries: Sequence[T]) -> Sequence[T]:
        """Return the entries of a run."""
        end = len(entries)
        if self._count < end:
            with lock:
                self._look_at(entries, end)
        return self._by_run.get(run, ())

    def _look_at(self, entries: Sequence[T], end: int) -> None:
        while True:
            # No call in between, at which a signal handler might stop a run and look at the same entry (see gate.py).
            number = self._count
            if number >= end:
                return
            self._count = number + 1
            self._by_run.setdefault(self._run_of(entries[number]), []).append(entries[number])

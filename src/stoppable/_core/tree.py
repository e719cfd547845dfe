"""The place of a run in its tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from stoppable._core.gate import Gate, lock

if TYPE_CHECKING:
    from stoppable._core.run import Run


class Place(Gate):
    """A parent, and the children as a chain: a stop walks it without a list per run, and a child leaves at once.

    ``_previous`` of the first child is the last one. Whoever reads or changes the chain holds the lock.
    """

    __slots__ = ("_first", "_next", "_previous", "parent")

    parent: Run | None
    _first: Run | None  # its first child
    _next: Run | None  # the sibling after it
    _previous: Run | None  # the sibling before it; None for one that is nobody's child

    def _append(self, child: Run) -> None:
        """Add a child after the others."""
        first = self._first
        if first is None:
            self._first = child._previous = child
        else:
            last = first._previous
            assert last is not None, "the first child knows the last one"
            last._next = first._previous = child
            child._previous = last

    def _leave_parent(self) -> bool:
        """Stop being a child; False if it was none."""
        with lock:
            if self._previous is None:
                return False
            self._unlink()
            return True

    def _unlink(self) -> None:
        """Take it out of the chain that it is in."""
        before, after, parent = self._previous, self._next, self.parent
        assert before is not None, "it is one of the children"
        assert parent is not None, "it is one of the children"
        first = parent._first
        assert first is not None, "it is one of the children"
        if first is self:
            parent._first = after
        else:
            before._next = after
        if before is not self:
            (after or first)._previous = before
        self._previous = self._next = None

    @property
    def children(self) -> tuple[Run, ...]:
        """The child runs that a stop of this one would reach now: those of which anything is alive, oldest first."""
        return tuple(self._offspring())

    @property
    def root(self) -> Run:
        """The run at the top of the tree."""
        *_, top = self._lineage()
        return top

    def _lineage(self) -> Iterator[Run]:
        """Yield it and the runs around it, the nearest one first."""
        run: Run | None = cast("Run", self)
        while run is not None:
            yield run
            run = run.parent

    def _is_within(self, other: Run) -> bool:
        return any(run is other for run in self._lineage())

    def _offspring(self) -> list[Run]:
        """Return its children, the oldest first."""
        found = []
        with lock:
            child = self._first
            while child is not None:
                found.append(child)
                child = child._next
        return found

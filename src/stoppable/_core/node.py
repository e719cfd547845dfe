"""The parts of every run: its place in the tree, its metadata, and the callbacks at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from stoppable._core.gate import Gate, lock
from stoppable._core.outcome import Outcome

if TYPE_CHECKING:
    from stoppable._core.run import Run
    from stoppable._core.sink import Sink


class Place(Gate):
    """A tree node with its children as a linked list: a stop needs no list per run, and a child is removed in O(1).

    ``_previous`` of the first child is the last child. Reading or changing the list requires the lock.
    """

    __slots__ = ("_first", "_next", "_previous", "parent")

    parent: Run | None
    _first: Run | None  # its first child
    _next: Run | None  # the sibling after it
    _previous: Run | None  # the sibling before it; None without a parent

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
        """Remove it from its parent; False if it has none."""
        with lock:
            if self._previous is None:
                return False
            self._unlink()
            return True

    def _unlink(self) -> None:
        """Unlink it from its siblings."""
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
        """The child runs that are still alive, oldest first: a stop of this run would reach them."""
        return tuple(self._offspring())

    @property
    def root(self) -> Run:
        """The run at the top of the tree."""
        *_, top = self._lineage()
        return top

    def _lineage(self) -> Iterator[Run]:
        """Yield the run and its ancestors, nearest first."""
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


class Annotated(Place):
    """The metadata of a run, such as its ids in other systems."""

    __slots__ = ("_metadata", "_sink")

    _metadata: dict[str, object] | None  # created for the first fact: most runs have none
    _sink: Sink | None

    @property
    def metadata(self) -> Mapping[str, object]:
        """The facts that were added with ``annotate``."""
        return dict(self._metadata or ())

    def annotate(self, **metadata: object) -> None:
        """Add facts about the run, such as its id in another system, to its record.

        A repeated name replaces the value. Works from any thread. After the end of the run, the facts change only in
        this process.
        """
        with lock:
            self._metadata = {**(self._metadata or {}), **metadata}
        if self._sink is not None:
            self._sink.annotated(cast("Run", self), metadata)


class Awaited(Annotated):
    """The outcome of a run, and the callbacks at its end."""

    __slots__ = ("_on_end", "_outcome")

    _outcome: Outcome[Any] | None
    _on_end: list[Callable[[], None]]

    def _when_ended(self, wake: Callable[[], None]) -> None:
        """Call an internal function at the end, or at once if the run has ended."""
        self._on_end.append(wake)  # published first, checked then, as at the gate
        if self._outcome is not None and self._forget(wake):
            wake()

    def _forget(self, wake: Callable[[], None]) -> bool:
        """Remove a callback; returns True to the one caller that removed it."""
        try:
            self._on_end.remove(wake)
        except ValueError:
            return False
        return True

    def _wake_waiters(self) -> None:
        waiters = self._on_end
        while waiters:
            try:
                wake = waiters.pop(0)
            except IndexError:
                break  # the last one was just removed
            wake()

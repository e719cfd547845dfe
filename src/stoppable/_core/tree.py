"""The parts of every run: its place in the tree, its metadata, and the callbacks at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from stoppable._core.gate import Gate, lock
from stoppable._core.outcome import Outcome

if TYPE_CHECKING:
    from stoppable._core.node import RunNode
    from stoppable._core.sink import Sink


class Place(Gate):
    """A tree node with its children as a linked list: a stop needs no list per run, and a child is removed in O(1).

    ``_previous`` of the first child is the last child. Reading or changing the list requires the lock.
    """

    __slots__ = ("_next", "_previous", "first_child", "parent")

    parent: RunNode | None
    first_child: RunNode | None  # its first child
    _next: RunNode | None  # the sibling after it
    _previous: RunNode | None  # the sibling before it; None without a parent

    def _append(self, child: RunNode) -> None:
        """Add a child after the others."""
        first = self.first_child
        if first is None:
            self.first_child = child._previous = child
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
        first = parent.first_child
        assert first is not None, "it is one of the children"
        if first is self:
            parent.first_child = after
        else:
            before._next = after
        if before is not self:
            (after or first)._previous = before
        self._previous = self._next = None

    @property
    def children(self) -> tuple[RunNode, ...]:
        return tuple(self.list_children())

    @property
    def root(self) -> RunNode:
        *_, top = self.lineage()
        return top

    def lineage(self) -> Iterator[RunNode]:
        """Yield the run and its ancestors, nearest first."""
        run: RunNode | None = cast("RunNode", self)
        while run is not None:
            yield run
            run = run.parent

    def is_within(self, other: RunNode) -> bool:
        return any(run is other for run in self.lineage())

    def list_children(self) -> list[RunNode]:
        """Return its children, the oldest first."""
        found = []
        with lock:
            child = self.first_child
            while child is not None:
                found.append(child)
                child = child._next
        return found


class Annotated(Place):
    """The metadata of a run, such as its ids in other systems."""

    __slots__ = ("_metadata", "sink")

    _metadata: dict[str, object] | None  # created for the first fact: most runs have none
    sink: Sink | None

    @property
    def metadata(self) -> Mapping[str, object]:
        return dict(self._metadata or ())

    def annotate(self, **metadata: object) -> None:
        with lock:
            self._metadata = {**(self._metadata or {}), **metadata}
        if self.sink is not None:
            self.sink.annotated(cast("RunNode", self), metadata)


class Awaited(Annotated):
    """The outcome of a run, and the callbacks at its end."""

    __slots__ = ("_on_end", "outcome")

    outcome: Outcome[Any] | None
    _on_end: list[Callable[[], None]]

    def when_ended(self, wake: Callable[[], None]) -> None:
        """Call an internal function at the end, or at once if the run has ended."""
        self._on_end.append(wake)  # published first, then checked, as at the gate
        if self.outcome is not None and self.forget(wake):
            wake()

    def forget(self, wake: Callable[[], None]) -> bool:
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

"""The part of a stream that belongs to the run that reads it: its boundary, its hook and its state."""

from __future__ import annotations

import sys
import weakref
from asyncio import AbstractEventLoop
from typing import Any, Generic, Never, TypeVar

from stoppable._core import participants
from stoppable._core.boundary import Boundary
from stoppable._core.context import RunContext
from stoppable._core.hooks import Hook
from stoppable._core.node import RunNode
from stoppable._core.state import Fate
from stoppable._engine.streaming.pending import Pending
from stoppable.errors import AgentStopped, StoppableError

T = TypeVar("T")


class Entry(Boundary):
    """The boundary of a stream, or of the call that makes one."""

    __slots__ = ("_ends", "is_cut", "stream")

    stream: weakref.ref[Chunks[Any]] | None
    """The stream that it is the boundary of."""

    def __init__(self, kind: str, name: str | None) -> None:
        self.kind = kind
        self.name = name
        self._run = None
        self.stream = None
        self.is_cut = False  # INTERRUPT ended it
        self._ends: list[None] = [None]

    def body_ended(self) -> None:
        """Close a stream that was left open: its reader is gone."""
        stream = None if self.stream is None or self.holder is not None else self.stream()
        if stream is not None:
            stream._close_left_open()

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the boundary, unless it was left; ``error`` says how it ended."""
        # The reader of a stream, the code that closes it and the end of the run may call this at once, on several
        # threads or in a signal handler. Taking the only element out of a list is one step, and needs no lock.
        try:
            self._ends.pop()
        except IndexError:
            return
        self.__exit__(None, error, None)

    def _note_fate(self, run: RunNode, kind: type[BaseException] | None, error: BaseException | None) -> None:
        super()._note_fate(run, kind, error)
        if self.is_cut and run.outcome is None:
            self._fate = Fate.INTERRUPTED


class GuardedEntry(Entry):
    """The boundary of a guarded method; between two chunks its consumer may be busy for a long time."""

    __slots__ = ()

    @property
    def is_idle(self) -> bool:
        """Whether no code waits for a chunk."""
        return self.holder is None


class QuietEntry(GuardedEntry):
    """The boundary of a call that may only make a coroutine; it is reported once it is known to do more."""

    __slots__ = ()

    def _published(self, run: RunNode, scope: RunContext) -> None:
        self._pass(run, scope)

    def tell(self) -> None:
        """Report that it was entered."""
        if self._run is not None and self._run.sink is not None:
            self._run.sink.entered(self._run, self)

    def withdraw(self) -> None:
        """Leave without a report: nothing has begun."""
        if self._run is not None:
            self._skip()


class Chunks(Generic[T]):
    """The common part of async and blocking streams: the source, and the place in the run that reads it."""

    __slots__ = (
        "__weakref__",
        "_cut",
        "_entry",
        "_finish",
        "_hook",
        "_is_shielded",
        "_iterator",
        "_label",
        "_loop",
        "_over",
        "_pending",
        "_run",
        "_source",
    )

    def __init__(self, source: Any, *, finish: bool = False, entry: Entry | None = None) -> None:
        self._over = False
        self._source = source
        self._finish = finish
        self._iterator: Any = None
        self._run: RunNode | None = None  # the run that reads it
        self._entry = entry
        self._label = ("llm", "stream") if entry is None else (entry.kind, entry.name)
        self._hook: Hook | None = None
        self._loop: AbstractEventLoop | None = None
        self._pending: Pending | None = None  # set while a task waits for a chunk; INTERRUPT may end the wait
        self._is_shielded = False  # its reader is in a shield
        self._cut = False  # INTERRUPT ended it
        if entry is not None:
            self._run = entry._run
            entry.holder = None
            entry.stream = weakref.ref(self)

    # Its place in a run

    def _may_step(self, scope: RunContext) -> bool:
        """Return whether the next chunk may be read; before the first one in a run, enter the gate of the run."""
        if self._cut:
            return False
        if self._over:
            return not scope.closed
        run = scope.run_here()
        has_begun = run is self._run
        if scope.closed and not (self._finish and has_begun and not _is_forced(run)):
            return False
        if not has_begun:
            self._leave()
            if run is not None and not self._enter(scope, run):
                return False
        self._is_shielded = run is not scope
        if self._hook is None and isinstance(scope, RunNode):
            self._hook = self._make_hook(scope)
            scope.add_hook(self._hook)
        return not self._cut

    def _enter(self, scope: RunContext, run: RunNode) -> bool:
        kind, name = self._label
        if not _is_listed(run, kind, participants.join(run)):
            entry = Entry(kind, name)
            if not entry.enter_unpaid(scope):
                return False
            entry.holder = None  # until a read begins
            entry.stream = weakref.ref(self)
            self._entry = entry
        self._run = run
        return True

    def _leave(self, error: BaseException | None = None) -> None:
        """Leave the run; another read would enter a run again."""
        hook, self._hook = self._hook, None
        entry, self._entry = self._entry, None
        self._run = None
        if hook is not None:
            hook.remove()
        if entry is not None:
            entry.is_cut = self._cut
            entry.leave(error)

    def _make_hook(self, run: RunNode) -> Hook:
        raise NotImplementedError

    # One read

    def _read_begins(self) -> participants.Participant | None:
        if self._run is None:
            return None
        reader = participants.join(self._run)
        if self._entry is not None:
            self._entry.holder = reader
        return reader

    def _read_ends(self) -> None:
        if self._entry is not None:
            self._entry.holder = None
        if self._run is not None and self._run.body_end is not None:
            self._run.settle()  # the run may have waited only for this read

    def _read_failed(self, error: BaseException) -> None:
        """Leave the run because a read raised; only StopIteration or StopAsyncIteration ends the stream."""
        if isinstance(error, StopIteration | StopAsyncIteration):
            self._over = True
            self._leave()
        else:
            self._leave(error)

    # Its end

    def _leave_closed(self) -> None:
        """Leave the run because the stream was closed; the error that is being handled, if any, says why."""
        error = GeneratorExit()
        error.__context__ = sys.exception()
        self._leave(error)

    def _close_left_open(self) -> None:
        raise NotImplementedError

    def _closables(self) -> tuple[Any, ...]:
        """Return the objects to close: the iterator, and the source that it was made from."""
        if self._iterator is None or self._iterator is self._source:
            return (self._source,)
        return self._iterator, self._source

    @staticmethod
    def _deliver(scope: RunContext) -> None:
        # Before the clean-up: if closing fails, that is an error while stopping, not a failure of the run (G8).
        run = scope.run_here()
        if run is not None:
            run.deliver(raised=True)

    def _raise_stopped(self, scope: RunContext) -> Never:
        run = scope.run_here()
        if run is not None and run.closed:
            try:
                run.raise_stopped()
            except AgentStopped as stopped:
                stopped.by_force = self._cut
                raise
        raise StoppableError("this stream is closed: the run that read it was stopped")


def _is_forced(run: RunNode | None) -> bool:
    return run is not None and (run.rung is not None or run.outcome is not None)


def _is_listed(run: RunNode, kind: str, reader: participants.Participant | None) -> bool:
    """Return whether the reader is inside a boundary of this kind: then the stream is a part of that effect."""
    open_ = (member for member in list(run.members or ()) if isinstance(member, Boundary))
    return any(other.kind == kind and other.holder is reader for other in open_)

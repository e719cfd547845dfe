"""A run as users see it, with its partial and its budgets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from stoppable._core import context
from stoppable._core.participants import lock
from stoppable._core.values import Limits, Mode, Reason, ReasonKind
from stoppable.errors import InvalidArgument

if TYPE_CHECKING:
    from stoppable._core.context import Token
    from stoppable._core.node import RunNode
    from stoppable._core.stop import Receipt
    from stoppable._core.values import Outcome, Policy, Status


class Partial:
    """A value that was set, and the items that were appended since; appending is atomic."""

    __slots__ = ("_base", "_chunks")

    is_automatic: ClassVar[bool] = False
    """Whether stoppable keeps it for an agent that sets none; the first one of the agent takes its place."""

    def __init__(self, base: object = None) -> None:
        self._base = base
        self._chunks: list[object] = []

    def append(self, delta: object) -> None:
        """Extend it: text is joined, any other value is added to a list."""
        base = self._base
        if base is not None and not isinstance(base, list) and not (isinstance(base, str) and isinstance(delta, str)):
            raise InvalidArgument(
                f"cannot append {type(delta).__name__} to a partial that is {type(base).__name__}: "
                "append text to text or items to a list, or replace the whole with set_partial()"
            )
        self._chunks.append(delta)

    def value(self) -> object:
        """Return the whole value: text if all of it is text, otherwise a list."""
        chunks = list(self._chunks)
        base = self._base
        if not chunks:
            return base
        if isinstance(base, list):
            return [*base, *chunks]
        texts = [chunk for chunk in chunks if isinstance(chunk, str)]
        head = [base] if isinstance(base, str) else []
        return "".join(head + texts) if len(texts) == len(chunks) else chunks


class AutomaticPartial(Partial):
    """The partial of an agent that sets none."""

    __slots__ = ()

    is_automatic = True


def set_partial(value: object) -> None:
    """Replace what the current run has recorded; it is in the outcome, however the run ends (G11)."""
    run = context.current_node()
    if run is not None:
        run.recorded = Partial(value)
        if run.sink is not None:
            run.sink.partial(run, value, appended=False)


def append_partial(delta: object) -> None:
    """Add to what the current run has recorded: strings are joined, other values collected in a list (G11)."""
    run = context.current_node()
    if run is not None:
        if run.recorded is None or run.recorded.is_automatic:
            with lock:  # made when the first thread needs it: most runs have no partial
                if run.recorded is None or run.recorded.is_automatic:
                    run.recorded = Partial()
        run.recorded.append(delta)
        if run.sink is not None:
            run.sink.partial(run, delta, appended=True)


Left: TypeAlias = tuple[int, int]
"""How many boundaries may still be entered, and the limit."""


class Budget:
    """The limits of one run; a boundary counts here and in every budget further up the tree."""

    __slots__ = ("_counters", "_limits", "_outer", "_run", "_spent")

    def __init__(self, run: RunNode, limits: Limits, outer: Budget | None) -> None:
        self._run = run
        self._limits = limits
        self._outer = outer
        # next() of a count is atomic, so two threads never get the same number.
        self._counters: dict[str, Iterator[int]] = {kind: count(1) for kind in limits.boundaries}
        self._spent: dict[str, int] = {}  # approximate: another thread may be about to raise it

    def spend(self, kind: str) -> None:
        """Count one boundary; the first one over a limit stops the run that has the limit."""
        budget: Budget | None = self
        while budget is not None:
            counter = budget._counters.get(kind)
            if counter is not None:
                budget._spent[kind] = spent = next(counter)
                if spent > budget._limits.boundaries[kind]:
                    budget._exceeded(kind, budget._limits.boundaries[kind])
            budget = budget._outer

    def _exceeded(self, kind: str, limit: int) -> None:
        self._run.stop(reason=Reason.of(f"limit of {limit} {kind} boundaries", kind=ReasonKind.LIMIT))

    def left(self) -> dict[str, Left]:
        """Return how many boundaries of each kind may still be entered, here and in every ancestor."""
        counts: dict[str, Left] = {}
        budget: Budget | None = self
        while budget is not None:
            for kind, limit in budget._limits.boundaries.items():
                remaining = max(0, limit - budget._spent.get(kind, 0)), limit
                counts[kind] = min(remaining, counts.get(kind, remaining))
            budget = budget._outer
        return counts


class Run(ABC):
    """One addressable execution of an agent; ``open_run``, ``spawn``, a supervisor or a call of an agent creates it."""

    __slots__ = ()

    # Identity

    @property
    @abstractmethod
    def id(self) -> str:
        """Its id, which addresses it everywhere."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its agent."""

    @property
    @abstractmethod
    def owner(self) -> str | None:
        """The user or tenant that it belongs to, if one was given; children inherit it."""

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, str]:
        """Its labels, with those of its parent."""

    @property
    @abstractmethod
    def policy(self) -> Policy:
        """How long each rung of a stop waits; children inherit it."""

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, object]:
        """The facts that were added with ``annotate``."""

    @abstractmethod
    def annotate(self, **metadata: object) -> None:
        """Add facts about the run, such as its id in another system, to its record.

        A repeated name replaces the value. Works from any thread. After the end of the run, the facts change only in
        this process.
        """

    # Its place in the tree

    @property
    @abstractmethod
    def parent(self) -> Run | None:
        """The run that started it, or None at the top."""

    @property
    @abstractmethod
    def children(self) -> tuple[Run, ...]:
        """The child runs that are still alive, oldest first: a stop of this run would reach them."""

    @property
    @abstractmethod
    def root(self) -> Run:
        """The run at the top of the tree."""

    # State

    @property
    @abstractmethod
    def status(self) -> Status:
        """The current status."""

    @property
    @abstractmethod
    def started_at(self) -> float | None:
        """When its body began, by the clock of this process, or None before."""

    @property
    @abstractmethod
    def in_flight(self) -> tuple[str, ...]:
        """The open boundaries of the subtree in this process."""

    @property
    @abstractmethod
    def partial(self) -> object:
        """What the run has recorded so far."""

    @property
    @abstractmethod
    def outcome(self) -> Outcome[Any] | None:
        """How the run ended, or None while it is alive."""

    # Stopping it

    @property
    @abstractmethod
    def token(self) -> Token:
        """The read-only view of whether this run was stopped."""

    @property
    @abstractmethod
    def delivered_at(self) -> float | None:
        """When its code first noticed a stop, by the clock of this process, or None."""

    @property
    @abstractmethod
    def receipt(self) -> Receipt | None:
        """The receipt of the stops of this run so far, or None if it was not stopped."""

    @abstractmethod
    def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: Reason | str | None = None,
        actor: str | None = None,
        grace: float | None = None,
    ) -> Receipt:
        """Stop this run and its subtree, and return what was in flight; never fails because of a race (G10).

        May be called from any thread and from a signal handler. When it returns, the gate is closed; the ladder
        continues in the background. A stop in the same or a lower mode changes nothing and returns the same receipt.
        """

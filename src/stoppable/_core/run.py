"""The public interface of a run. The node behind it, which the engine works on, is in node.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stoppable._core.state import Mode

if TYPE_CHECKING:
    from stoppable._core.outcome import Outcome
    from stoppable._core.policy import Policy
    from stoppable._core.reason import Reason
    from stoppable._core.state import Status
    from stoppable._core.stop import Receipt
    from stoppable._core.token import Token


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

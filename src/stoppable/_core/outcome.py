"""How a run ended."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from stoppable._core.reason import Reason
from stoppable._core.state import Rung, Status

T_co = TypeVar("T_co", covariant=True)


class Outcome(NamedTuple, Generic[T_co]):
    """The terminal record of a run; written once and never changed (G2).

    ``reason`` is why it was stopped, even if the stop came too late. ``rung`` is the highest rung that was climbed.
    ``clean`` is True if every ``finally`` is known to have run to its end, False if one is known not to have, and None
    if that is unknown (G7). ``error`` is the error that the body raised, including one that it raised while stopping
    (G8).
    """

    # A named tuple, because every run creates one, and a frozen dataclass of eight fields is five times slower.
    status: Status
    reason: Reason | None = None
    rung: Rung | None = None
    clean: bool | None = True
    result: T_co | None = None
    partial: object = None
    error: BaseException | None = None
    at: float = 0.0

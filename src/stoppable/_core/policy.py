"""How long each rung of the ladder lasts, and how much a run may use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stoppable._core.state import Mode, Rung
from stoppable.errors import InvalidArgument

_MOST = 31_536_000  # seconds, a year: every wait can take that long, and every store can keep it


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How many seconds each rung of the ladder lasts.

    A graceful stop waits ``grace`` after SIGNAL, ``interrupt`` after INTERRUPT, ``cancel`` after CANCEL and ``kill``
    after KILL. Harder modes skip the first waits; a cooperative stop never climbs. A run that has never reached a
    boundary or check cannot notice the stop: it is cancelled after ``blind_grace``, unless the stop itself has a
    ``grace``.
    """

    grace: float = 10.0
    interrupt: float = 1.0
    cancel: float = 5.0
    kill: float = 2.0
    blind_grace: float = 2.0

    def __post_init__(self) -> None:
        for name in ("grace", "interrupt", "cancel", "kill", "blind_grace"):
            seconds(getattr(self, name), name)

    def schedule(
        self, mode: Mode, grace: float | None = None, blind_after: float | None = None
    ) -> Iterator[tuple[Rung, float]]:
        """Yield the rungs above SIGNAL, each with the seconds after the request at which it begins.

        A blind run, which has nothing to interrupt, is cancelled ``blind_after`` seconds after the request.
        """
        if mode is Mode.COOPERATIVE:
            return
        gentle = mode is Mode.GRACEFUL
        is_blind = gentle and grace is None and blind_after is not None
        at = next(wait for wait in (grace, blind_after, self.grace) if wait is not None) if gentle else 0.0
        yield Rung.INTERRUPT, at
        at += self.interrupt if gentle and not is_blind else 0.0
        yield Rung.CANCEL, at
        at += 0.0 if mode is Mode.KILL else self.cancel
        yield Rung.KILL, at
        yield Rung.LOST, at + self.kill

    @property
    def blind_wait(self) -> float:
        """How many seconds a graceful stop waits for a blind run."""
        return min(self.blind_grace, self.grace + self.interrupt)

    def total(self, mode: Mode, grace: float | None = None) -> float:
        """Return the seconds after which a stop in this mode has a terminal status (G6)."""
        return max((at for _, at in self.schedule(mode, grace)), default=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a run and its subtree may use; exceeding a limit stops the run, with a reason of kind ``limit``."""

    seconds: float | None = None
    boundaries: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seconds is not None:
            seconds(self.seconds, "seconds")
        if not isinstance(self.boundaries, Mapping):
            raise InvalidArgument(f"boundaries is {self.boundaries!r:.40}: use a dict of kinds and whole numbers")
        for kind, count in self.boundaries.items():
            if not isinstance(count, int) or count < 0:
                raise InvalidArgument(f"the limit of {kind!r} boundaries is {count!r}: use a whole number from 0 up")


def check_given(limits: object, policy: object) -> None:
    """Raise an error if limits or a policy have the wrong type."""
    for name, value, kind in (("limits", limits, Limits), ("policy", policy, Policy)):
        if value is not None and not isinstance(value, kind):
            raise InvalidArgument(f"{name} is {value!r}: use stoppable.{kind.__name__}(…)")


def seconds(value: float, name: str, unit: str = "seconds") -> float:
    """Return a duration, or raise an error that says which values are valid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise InvalidArgument(f"{name} is {value!r:.40}: use a number of {unit} from 0 up to {_MOST:,}")
    return value

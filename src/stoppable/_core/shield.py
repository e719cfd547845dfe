"""The bounded clean-up region."""

from __future__ import annotations

import contextvars
from types import TracebackType
from typing import Never, Self

from stoppable._core import clock, context, port
from stoppable._core.context import Scope
from stoppable._core.policy import seconds
from stoppable._core.run import Run
from stoppable.errors import StoppableError


class shielded:  # noqa: N801 - reads as a statement: `with shielded(5):`
    """Let a clean-up finish: inside, ``should_stop()`` is False, boundaries may be entered, and CANCEL waits.

    It protects for ``seconds`` from its entry, never beyond KILL. It cannot span a ``yield``.
    """

    __slots__ = ("_participant", "_reset", "_run", "_seconds", "_until")

    def __init__(self, seconds_: float, /) -> None:
        self._seconds = seconds(seconds_, "seconds")
        self._run: Run | None = None
        self._reset: contextvars.Token[Scope] | None = None

    def __enter__(self) -> Self:
        outer = context.current.get()
        self._run = outer._run_here()
        if self._run is not None:
            self._until = clock.now() + self._seconds
            if isinstance(outer, shielded):
                self._until = max(self._until, outer._until)
            self._participant = port.participant()
            if self._participant is not None:
                self._participant.shield_entered(self._until)
            self._reset = context.current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._reset is None:
            return
        try:
            context.current.reset(self._reset)
        except ValueError:
            raise StoppableError("a shield cannot span a yield: leave `with shielded(…)` before yielding") from None
        finally:
            if self._participant is not None:
                self._participant.shield_left()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    def _over(self, run: Run) -> shielded:
        """Return the same shield over a run that was started inside it."""
        inner = shielded(self._seconds)
        inner._run = run
        inner._until = self._until
        return inner

    def _ends_at(self) -> float:
        kill_at = None if self._run is None else self._run._kill_at()
        return self._until if kill_at is None else min(self._until, kill_at)

    # As the scope of the code inside it

    @property
    def _closed(self) -> bool:
        return self._run is not None and self._run._closed and clock.now() >= self._ends_at()

    def _run_here(self) -> Run | None:
        return self._run

    def _answer(self) -> bool:
        return self._run is not None and self._run._answer()

    def _raise_stopped(self) -> Never:
        assert self._run is not None, "a shield outside a run is never closed"
        self._run._raise_stopped()

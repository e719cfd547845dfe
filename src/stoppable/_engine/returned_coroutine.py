"""The coroutine that a ``def`` agent returned: the run continues when the coroutine is awaited."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Generator, Mapping
from typing import Any

from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.state import Rung
from stoppable._engine.edge import BlockingEdge, Edge


class Returned(Participant, Coroutine[Any, Any, Any]):
    """The coroutine, as a part of its run; if it is never awaited, it ends with the surrounding run."""

    __slots__ = ("_coroutine", "_inner", "_run", "loop", "task", "thread")

    def __init__(self, edge: BlockingEdge, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._run = edge.run
        self._coroutine = coroutine
        self._inner: Coroutine[Any, Any, Any] | None = None
        self.task, self.loop, self.thread = None, None, Participant.thread
        edge.suspend(self)

    # As a coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._begun().__await__()

    def send(self, value: Any) -> Any:
        """Begin or continue the coroutine."""
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        """Continue with an error; if it has not begun, it ends with that, as when its task is cancelled at once."""
        if self._inner is not None:
            return self._inner.throw(*error)
        try:
            return self._coroutine.throw(*error)
        finally:
            self.close()

    def close(self) -> None:
        """End the coroutine, even if it has not begun."""
        if self._inner is not None:
            self._inner.close()
        elif self._run.body_end is None:
            self._coroutine.close()
            self._run.stop(reason=Reason.of("its coroutine was never awaited", kind=ReasonKind.DISCONNECT))
            self._run.deliver(raised=True)
            self._run.end(None, None)

    def __del__(self) -> None:
        if self._inner is None:
            self.close()

    def _begun(self) -> Coroutine[Any, Any, Any]:
        if self._inner is None:
            self._inner = self._go_on()
        return self._inner

    async def _go_on(self) -> Any:
        edge = Edge(self._run)
        edge.resume()
        result, error = None, None
        try:
            if self._run.closed:
                self._coroutine.close()
                self._run.raise_stopped()
            result = await self._coroutine
        except BaseException as caught:
            error = caught
        try:
            await edge.close(result, error)
        finally:
            error = None
        return edge.answer()

    # As a participant, until it is awaited

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Do nothing: no code executes it."""

    def alive(self) -> bool:
        """Return whether it can still begin."""
        return self._inner is None and self._run.body_end is None

    def describe(self) -> str:
        """Name it."""
        return f"coroutine of {self._run.name}, which was never awaited"

    def left_behind(self) -> None:
        """End with the surrounding run."""
        with contextlib.suppress(RuntimeError):  # another task is awaiting it
            self.close()

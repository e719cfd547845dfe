"""The partial of a run."""

from __future__ import annotations

from typing import ClassVar

from stoppable._core import context
from stoppable._core.gate import lock
from stoppable.errors import InvalidArgument


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

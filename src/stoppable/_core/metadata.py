"""Facts about a run that are kept with its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from stoppable._core.gate import lock
from stoppable._core.tree import Place

if TYPE_CHECKING:
    from stoppable._core.run import Run
    from stoppable._core.sink import Sink


class Annotated(Place):
    """What a run is in other systems, as far as somebody noted it."""

    __slots__ = ("_metadata", "_sink")

    _metadata: dict[str, object] | None  # made for the first fact: most runs have none
    _sink: Sink | None

    @property
    def metadata(self) -> Mapping[str, object]:
        """What was noted about this run with ``annotate``."""
        return dict(self._metadata or ())

    def annotate(self, **metadata: object) -> None:
        """Note facts about the run, such as the id it has in another system; they are kept with its record.

        A name that is given again replaces its value. Works from any thread. After the end of the run it changes only
        what this process knows.
        """
        with lock:
            self._metadata = {**(self._metadata or {}), **metadata}
        if self._sink is not None:
            self._sink.annotated(cast("Run", self), metadata)

"""One call of a graph: its run, the thread it works on, and what is written there after a stop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.types import Command

import stoppable
from stoppable.adapters.langgraph.sealing import amend, aroll_back, aseal, mend, roll_back, seal
from stoppable.adapters.langgraph.settings import DEFAULT, Settings, key_of, settings_of
from stoppable.adapters.langgraph.threads import thread_of
from stoppable.adapters.langgraph.turn import Turn, Unit, at, here

_logger = logging.getLogger("stoppable.adapters.langgraph")


class Call:
    """What a method of a graph was called with."""

    def __init__(self, graph: Any, given: Any, config: Any) -> None:
        outer = here() if stoppable.current_run() is not None else None
        inherited = DEFAULT if outer is None else outer.turn.settings.for_subgraph()
        self.settings: Settings = settings_of(graph) or inherited
        self.name: str = self.settings.name or graph.get_name()
        self._is_new_input = given is not None and not isinstance(given, Command)
        self._outer = outer
        own = thread_of(graph, config)
        self._thread = own if outer is None or own.config is not None else outer.thread
        self._owns = self._thread is own and own.config is not None
        self.on_text: Callable[[str], object] | None = None

    # The run

    def opened(self) -> contextlib.AbstractAsyncContextManager[stoppable.Run]:
        """Return what makes an async block the run of this call: a child inside a run."""
        settings = self.settings
        if settings.supervisor is None or stoppable.current_run() is not None:
            return stoppable.open_run(self.name, policy=settings.policy)
        return settings.supervisor.open_run(self.name, **self._options())

    def opened_blocking(self) -> contextlib.AbstractContextManager[stoppable.Run]:
        """Return the same for a block that is not async."""
        settings = self.settings
        if settings.supervisor is None or stoppable.current_run() is not None:
            return stoppable.open_run(self.name, policy=settings.policy)
        return settings.supervisor.blocking.open_run(self.name, **self._options())

    def _options(self) -> dict[str, Any]:
        config = self._thread.config
        key = None if config is None else key_of(config["configurable"]["thread_id"])
        return {"key": key, "owner": self.settings.owner, "policy": self.settings.policy}

    # What is done in it

    def _unit(self) -> Unit:
        """Return the unit that the graph runs in."""
        turn = Turn(self.settings, self.on_text) if self._outer is None else self._outer.turn
        return Unit(turn, self._thread, None, self._outer)

    async def perform(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work of the call inside its run; repair its thread before, and seal it after a stop."""
        await self._begin()
        try:
            with at(self._unit()):
                result = await work()
        except BaseException:
            await self._end(has_raised=True)
            raise
        await self._end(has_raised=False)
        return result

    def perform_blocking(self, work: Callable[[], Any]) -> Any:
        """Do the same for work that is not async."""
        self._begin_blocking()
        try:
            with at(self._unit()):
                result = work()
        except BaseException:
            self._end_blocking(has_raised=True)
            raise
        self._end_blocking(has_raised=False)
        return result

    # The thread

    async def _begin(self) -> None:
        if not self._owns or self.settings.on_stop == "leave":
            return
        graph, config = self._thread.graph, self._thread.config
        if self._is_new_input:  # without input, the caller continues the thread where it is
            await amend(graph, config, None)
        self._began(await graph.aget_state(config))

    def _begin_blocking(self) -> None:
        if not self._owns or self.settings.on_stop == "leave":
            return
        graph, config = self._thread.graph, self._thread.config
        if self._is_new_input:
            mend(graph, config, None)
        self._began(graph.get_state(config))

    def _began(self, state: Any) -> None:
        thread = self._thread
        thread.began_at = state.config["configurable"].get("checkpoint_id")
        thread.had_interrupts = any(task.interrupts for task in state.tasks)
        if self._outer is not None:
            self._outer.thread.below.append(thread)

    async def _end(self, *, has_raised: bool) -> None:
        if self._is_stopped(has_raised=has_raised):
            with stoppable.shielded(self.settings.seal_seconds), stoppable.detached():
                try:
                    await (aroll_back if self.settings.on_stop == "rollback" else aseal)(self._thread)
                except Exception as error:
                    self._failed(error)

    def _end_blocking(self, *, has_raised: bool) -> None:
        if self._is_stopped(has_raised=has_raised):
            with stoppable.shielded(self.settings.seal_seconds), stoppable.detached():
                try:
                    (roll_back if self.settings.on_stop == "rollback" else seal)(self._thread)
                except Exception as error:
                    self._failed(error)

    def _is_stopped(self, *, has_raised: bool) -> bool:
        """Return whether a stop ended the call; one that came too late leaves the thread as the graph left it."""
        run = stoppable.current_run()
        if not self._owns or run is None or not run.token.stopped or self.settings.on_stop == "leave":
            return False
        return has_raised or ((receipt := run.receipt) is not None and receipt.delivered_at is not None)

    def _failed(self, error: Exception) -> None:
        # The caller still gets the outcome; the next turn repairs the thread, or says why it cannot.
        _logger.error("the thread of a stopped run of %s could not be sealed", self.name, exc_info=error)

"""The run edge around a block of existing code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType

from stoppable._core import clock, context
from stoppable._core.boundary import check
from stoppable._core.node import RunNode, node_of
from stoppable._core.run import Run
from stoppable._core.values import Limits, Policy, Reason, ReasonKind, check_given
from stoppable._engine import control
from stoppable._engine.edge import BlockingEdge, Edge, require_stack_room
from stoppable.errors import InvalidArgument, StoppableError


class open_run:  # noqa: N801 - reads as a statement: `async with open_run("job") as run:`
    """Make a block a run: a child of the current run, or a new root.

    With ``parent`` it is a child of that run, for code that is called without the context of its run: on a foreign
    thread, or in a callback of a framework. If that run was stopped, the block does not begin. At its end it raises
    RunStopped or RunLost if the run was stopped; an error of the block propagates unchanged.
    """

    __slots__ = ("_edge", "_limits", "_make")

    _edge: Edge | BlockingEdge

    def __init__(
        self,
        name: str,
        *,
        parent: Run | None = None,
        run_id: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
    ) -> None:
        check_given(limits, policy)

        def make() -> RunNode:
            if parent is not None:
                above: RunNode | None = node_of(parent)
            else:
                check()
                above = context.current_node()
            if above is not None and above.budget is not None:
                above.budget.spend("subrun")
            return RunNode(name, above, run_id=run_id, owner=owner, labels=labels, limits=limits, policy=policy)

        self._prepare(make, limits)

    def _prepare(self, make: Callable[[], RunNode], limits: Limits | None) -> None:
        # Called on entry: a run that never begins would keep its parent waiting.
        self._make: Callable[[], RunNode] | None = make
        self._limits = limits

    def __enter__(self) -> Run:
        refuse_generators(sys._getframe(1), "open_run()")
        return self._enter(BlockingEdge)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        assert isinstance(self._edge, BlockingEdge)
        self._edge.close(None, error)
        return self._finish(error)

    async def __aenter__(self) -> Run:
        refuse_generators(sys._getframe(1), "open_run()")
        return self._enter(Edge)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        assert isinstance(self._edge, Edge)
        await self._edge.close(None, error)
        return self._finish(error)

    def _enter(self, kind: type[Edge | BlockingEdge]) -> Run:
        if self._make is None:
            raise InvalidArgument("this open_run(…) was already used: call open_run(…) again for each run")
        require_stack_room()
        run = self._make()
        self._make = None
        self._edge = kind(run)
        try:
            is_open = self._edge.open()
        except StoppableError:
            run.skip()
            raise
        if not is_open:
            self._edge.answer()
        limit_time(run, self._limits)
        return run

    def _finish(self, error: BaseException | None) -> bool:
        run = self._edge.run
        outcome = run.outcome
        if outcome is not None and outcome.error is error is not None and not run.token.stopped:
            return False  # the block's own error propagates with its traceback
        self._edge.answer()
        return True


_DRIVERS = ("contextlib", "stoppable._engine.bodies")


def refuse_generators(frame: FrameType | None, what: str) -> None:
    """Refuse a block in a generator that other code iterates over: that code would be in the run (PEP 568).

    Generators that are context managers are fine, and generator agents have their own context.
    """
    while frame is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back  # an exit stack
    name = None if frame is None else frame.f_code.co_qualname
    is_generator = False
    while frame is not None and frame.f_code.co_flags & _GENERATOR and not frame.f_code.co_flags & _COROUTINE:
        frame, is_generator = frame.f_back, True
    if is_generator and frame is not None and frame.f_globals.get("__name__") not in _DRIVERS:
        raise StoppableError(
            f"{what} cannot span the yields of {name}: its consumer would be in the run between two items, and "
            "out of it if another task continues. Start the generator itself, without this block, and read its run: "
            "(await supervisor.start(…)).stream(), or (await stoppable.spawn(…)).stream(); inside a run, mark it with "
            "@stoppable.agent; in a fixture, open the run in a function with @contextlib.asynccontextmanager"
        )


_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_COROUTINE = inspect.CO_ITERABLE_COROUTINE


class edge_around(open_run):  # noqa: N801 - as above
    """Make a block the body of an existing run."""

    __slots__ = ()

    def __init__(self, run: RunNode, limits: Limits | None) -> None:
        self._prepare(lambda: run, limits)


def limit_time(run: RunNode, limits: Limits | None) -> None:
    """Stop a run when its seconds are over."""
    if limits is not None and limits.seconds is not None:
        reason = f"limit of {limits.seconds} seconds"
        timer = control.get().call_at(clock.now() + limits.seconds, lambda: _stop_at_limit(run, reason))
        run.when_ended(timer.cancel)  # which releases the run


def _stop_at_limit(run: RunNode, reason: str) -> None:
    run.stop(reason=Reason.of(reason, kind=ReasonKind.LIMIT))

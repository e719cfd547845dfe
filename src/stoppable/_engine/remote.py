"""Work in another service as a node of the tree: it gets every stop, and is alive until the service reports its end."""

from __future__ import annotations

import inspect
import sys
from asyncio import CancelledError
from collections.abc import Mapping
from types import TracebackType

from stoppable._core.boundary import Boundary
from stoppable._core.callables import code_of
from stoppable._core.gate import lock
from stoppable._core.node import RunNode, node_of
from stoppable._core.participants import Participant, RemoteParticipant
from stoppable._core.policy import Policy
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.run import Run
from stoppable._core.shield import shielded
from stoppable._core.state import Fate, Mode, Rung
from stoppable._core.stop import Stop
from stoppable._engine import tasks
from stoppable._engine.alarms import Bell, run_in_place
from stoppable._engine.body_exits import OUTSIDERS
from stoppable._engine.open_run import open_run, refuse_generators
from stoppable._engine.remote_delivery import Line, Tell, end_of
from stoppable._engine.tasks import is_our_cancel
from stoppable.errors import InvalidArgument

_MODES = {Rung.CANCEL: Mode.IMMEDIATE, Rung.KILL: Mode.KILL}
_BY_ITSELF = (Fate.FINISHED, Fate.SKIPPED)


class RemoteNode:
    """Work that another service executes; ``remote()`` yields it."""

    __slots__ = ("_seat", "name", "run")

    def __init__(self, run: Run, seat: _Seat) -> None:
        self.run: Run = run
        self.name: str = run.name
        self._seat = seat

    @property
    def fate(self) -> Fate | None:
        """How the remote work ended, as the service reported it, or None until then."""
        return self._seat.said

    def identify(self, **ref: object) -> None:
        """Record the address of the remote work once it is known; a stop that came earlier is passed on now.

        It is written to the record of the run (``Run.annotate``), so that the remote work can be found after a crash.
        """
        self.run.annotate(**ref)
        self._seat.line.open()

    def ended(self, fate: str = Fate.FINISHED) -> None:
        """Record how the remote work ended: ``finished``, or what the stop did to it; the first report counts."""
        self._seat.end(end_of(fate) or Fate.FINISHED)

    def park(self) -> None:
        """Record that the remote work waits for its caller: for input, or a permission.

        A stop still reaches it. If the surrounding run comes to its own end before ``resume``, it does not wait for the
        remote work, which has ``finished`` as far as that run is concerned.
        """
        self._seat.is_parked = True

    def resume(self) -> None:
        """Record that the remote work goes on."""
        self._seat.is_parked = False

    def give_up(self) -> None:
        """Record that the service has the stop and cannot end the work: the run is ``lost`` now, not after the ladder.

        Does nothing if the run was not stopped.
        """
        self._seat.give_up()

    async def gone(self) -> None:
        """Wait until the end of the remote work is known, or it was given up."""
        await self._seat.gone(blocking=False)

    def __repr__(self) -> str:
        return f"<RemoteNode {self.name!r} {self.fate or 'not ended'}>"


class _Effect(Boundary):
    """The remote work as it is listed in flight; its fate is what the service reported, whatever happened here."""

    __slots__ = ("seat",)

    def __init__(self, name: str, seat: _Seat) -> None:
        self.kind = "remote"
        self.name: str | None = name
        self.seat: _Seat = seat
        self._run = None

    @property
    def fate(self) -> Fate | None:
        found = super().fate
        if found is None and self.seat.said is None and self.seat.run.outcome is not None:
            found = self._fate = self.seat.fate_of_lost()
        return found

    def _note_fate(
        self,
        run: RunNode,
        kind: type[BaseException] | None,  # noqa: ARG002 - only the report of the service counts
        error: BaseException | None,  # noqa: ARG002
    ) -> None:
        if run.outcome is None and self.seat.said is not None:
            self._fate = self.seat.said


class _Seat(RemoteParticipant):
    """The participant for the remote work: passes stops on, and keeps what the service reported."""

    __slots__ = ("bell", "effect", "is_parked", "line", "run", "said")

    is_listed = False  # its boundary is listed instead

    def __init__(self, run: RunNode, tell: Tell, *, is_open: bool) -> None:
        self.run: RunNode = run
        self.said: Fate | None = None
        self.is_parked: bool = False  # it waits for the code that started it
        self.bell: Bell = Bell()
        self.line: Line = Line(run, tell, self.end, is_open=is_open)
        self.effect: _Effect = _Effect(run.name, self)

    def enter(self) -> None:
        """Join the run before the remote work starts; raises AgentStopped if the run was stopped."""
        self.run.admit(self)
        try:
            self.effect.__enter__()
        except BaseException:
            self.said = Fate.SKIPPED
            self.line.close()
            self.run.withdraw(self)
            raise
        self.effect.holder = self
        self.run.when_ended(self._given_up)

    def tell(self, stop: Stop) -> None:
        """Pass a stop on."""
        self.line.pass_on(stop)

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Pass a harder mode on; the remote work cannot be forced from here."""
        for seat in targets:
            assert isinstance(seat, cls)
            seat.line.want(_MODES[rung])

    def alive(self) -> bool:
        """Return whether the service has not reported the end."""
        return self.said is None

    def describe(self) -> str:
        """Name it."""
        return f"remote {self.run.name}"

    def end(self, fate: Fate) -> None:
        """Record how it ended; the first report counts, and one after the run was given up is a late event."""
        run = self.run
        with lock:
            if self.said is not None:
                return
            self.said = fate
            if fate not in _BY_ITSELF:
                run.deliver()  # in the service, which executes the run
        self.line.close()
        run.forget(self._given_up)
        self.effect.__exit__(None, None, None)
        run.withdraw(self)
        if run.body_end is not None:
            run.settle()
        self.bell.ring()

    def left_behind(self) -> None:
        """End, as far as the surrounding run is concerned, work that waits for the body of that run."""
        if self.is_parked and self.run.first_stop is None:
            self.end(Fate.FINISHED)

    def give_up(self) -> None:
        """Give the work up after a stop that the service has received."""
        if self.run.first_stop is not None and self.said is None:
            self.line.note_told()
            self.run.lose([])

    def fate_of_lost(self) -> Fate:
        """Return the fate of work that did not end: abandoned if the service got the stop, otherwise unreachable."""
        return Fate.ABANDONED if self.line.is_told else Fate.UNREACHABLE

    def _given_up(self) -> None:
        _ = self.effect.fate  # fixes it now: a final receipt does not change
        self.line.close()
        self.bell.ring()

    async def gone(self, *, blocking: bool) -> None:
        """Wait until it has ended, or was given up."""
        await self.bell.wait(lambda: self.said is not None or self.run.outcome is not None, blocking=blocking)


class remote:  # noqa: N801 - reads as a statement: `async with remote(…) as node:`
    """Make work in another service a node of the tree: a child run that ends when that service says so.

    ``tell`` passes a stop on to the service. It is called with a ``RemoteStop`` when the run is stopped, again in every
    harder mode and when the ladder climbs (CANCEL as ``immediate``, KILL as ``kill``), again if it raised, and again
    after the block is left, until it reports the end. It returns the fate of the remote work, or None if the service
    has received the stop and the work goes on; if the service could not be reached, it raises. An async function is
    called on the event loop of the block, a plain one on a separate thread.

    ``ref`` is the address of the remote work. If you learn it only later, leave it out and call ``node.identify(…)``:
    ``tell`` is not called before that.

    Report the end with ``node.ended(fate)``. Leaving the block without an error means that the remote work finished. If
    an error leaves the block, the remote work is stopped in ``immediate`` mode. After a stop, the block waits until the
    remote work has ended, or until the ladder ends: then the run is ``lost``, and the fate of the node is ``abandoned``
    if the service received the stop, otherwise ``unreachable``. A rung that was climbed here says nothing about the
    remote work.
    """

    __slots__ = ("_edge", "_ref", "_seat", "_tell")

    def __init__(
        self,
        name: str,
        *,
        tell: Tell,
        ref: Mapping[str, object] | None = None,
        labels: Mapping[str, str] | None = None,
        policy: Policy | None = None,
    ) -> None:
        if not callable(tell):
            raise InvalidArgument(f"tell is {tell!r:.40}: use a function that passes a stop on to the other service")
        self._tell = tell
        self._ref = ref
        self._edge = open_run(name, labels=labels, policy=policy)

    async def __aenter__(self) -> RemoteNode:
        refuse_generators(sys._getframe(1), "remote()")
        run = await self._edge.__aenter__()
        try:
            return self._entered(run)
        except BaseException as error:
            await self._edge.__aexit__(type(error), error, error.__traceback__)
            raise

    def __enter__(self) -> RemoteNode:
        if inspect.iscoroutinefunction(code_of(self._tell)):
            raise InvalidArgument(f"{self._tell!r} is async: use `async with remote(…)`, or a plain function")
        refuse_generators(sys._getframe(1), "remote()")
        run = self._edge.__enter__()
        try:
            return self._entered(run)
        except BaseException as error:
            self._edge.__exit__(type(error), error, error.__traceback__)
            raise

    def _entered(self, run: Run) -> RemoteNode:
        self._seat = _Seat(node_of(run), self._tell, is_open=self._ref is not None)
        self._seat.enter()
        if self._ref is not None:
            run.annotate(**self._ref)
        return RemoteNode(run, self._seat)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if self._is_to_be_awaited(error):
            try:
                with shielded(_as_long_as_the_ladder(self._seat.run)):
                    await self._seat.gone(blocking=False)
            except CancelledError as cancel:
                if not is_our_cancel():  # our own cancel is KILL: the edge takes it back
                    return await self._edge.__aexit__(CancelledError, cancel, cancel.__traceback__)
        return await self._edge.__aexit__(kind, error, tb)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if self._is_to_be_awaited(error) and tasks.current() is None:  # a loop's thread cannot wait
            run_in_place(self._seat.gone(blocking=True))
        return self._edge.__exit__(kind, error, tb)

    def _is_to_be_awaited(self, error: BaseException | None) -> bool:
        seat, run = self._seat, self._seat.run
        if error is None:
            seat.end(Fate.FINISHED)
        elif isinstance(error, OUTSIDERS) and not (isinstance(error, CancelledError) and is_our_cancel()):
            seat.line.listen()
            return False  # it propagates at once; the edge stops the run, and the ladder ends the remote work
        elif run.first_stop is None:
            if not seat.line.is_open:
                seat.end(Fate.SKIPPED)  # without an address, it counts as never started
            else:
                run.stop(Mode.IMMEDIATE, Reason.of(f"its block failed: {error!r}", kind=ReasonKind.PARENT))
        seat.line.listen()
        return seat.said is None


def _as_long_as_the_ladder(run: RunNode) -> float:
    grace = max((stop.grace or 0.0 for stop in run.stops()), default=0.0)
    return run.policy.total(Mode.GRACEFUL) + grace

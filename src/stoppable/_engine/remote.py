"""Work in another service as a node of the tree: it gets every stop, and is alive until the service reports its end."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
from asyncio import AbstractEventLoop, CancelledError, Task
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode, node_of
from stoppable._core.participants import Participant, RemoteParticipant, code_of, lock
from stoppable._core.run import Run
from stoppable._core.shield import shielded
from stoppable._core.stop import Stop
from stoppable._core.values import Fate, Mode, Policy, Reason, ReasonKind, Rung
from stoppable._engine import control, tasks
from stoppable._engine.control import Bell, run_in_place
from stoppable._engine.edge import FOREIGN
from stoppable._engine.open_run import open_run, refuse_generators
from stoppable._engine.tasks import is_only_own_cancel
from stoppable._engine.threads import pool
from stoppable.errors import InvalidArgument

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_NO_END = (Fate.ABANDONED, Fate.UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStop:
    """A stop to pass on to another service; ``grace`` is the number of seconds left, None without a limit."""

    mode: Mode
    reason: Reason
    grace: float | None


Tell: TypeAlias = Callable[[RemoteStop], Awaitable[str | None] | str | None]
"""Passes a stop on to a remote; see ``remote``."""


class RemoteLink:
    """The connection to one remote. Its methods never wait: calls run on the loop or on threads."""

    __slots__ = (
        "_context",
        "_delivered_mode",
        "_is_closed",
        "_is_only_way",
        "_loop",
        "_on_end",
        "_pause",
        "_requested_modes",
        "_run",
        "_stops",
        "_tasks",
        "_tell",
        "_wanted_mode",
        "is_open",
    )

    def __init__(self, run: RunNode, tell: Tell, on_end: Callable[[Fate], None], *, is_open: bool) -> None:
        self._run = run
        self._tell: Callable[[RemoteStop], Any] = tell
        self._on_end = on_end
        self.is_open: bool = is_open  # the address of the remote is known
        self._is_closed = False
        self._is_only_way = False  # its block was left, so only calls of tell can report the end
        self._loop: AbstractEventLoop | None = asyncio._get_running_loop()
        self._context = contextvars.copy_context()
        self._context.run(context.current.set, context.DETACHED)  # calls go on after the gate of the run is closed
        self._tasks: set[Task[None]] = set()
        self._stops: list[Stop] = []  # not acknowledged
        self._wanted_mode: Mode | None = None
        self._requested_modes: set[Mode] = set()  # modes for which a call was made or is in progress
        self._delivered_mode: Mode | None = None
        self._pause = _FIRST_PAUSE

    @property
    def has_received(self) -> bool:
        """Whether the remote is known to have received a stop."""
        return self._delivered_mode is not None

    def note_received(self) -> None:
        """Record that the remote has received the stop."""
        with lock:
            self._delivered_mode = self._delivered_mode or self._wanted_mode

    def pass_on(self, stop: Stop) -> None:
        """Pass a stop on, and acknowledge it after that; from any thread and from a signal handler."""
        with lock:
            self._stops.append(stop)
        control.get().call_at(clock.now(), partial(self.want, stop.mode))

    def want(self, mode: Mode) -> None:
        """Pass a mode on, unless the same or a harder one was passed on or is about to be."""
        with lock:
            if self._wanted_mode is None or self._wanted_mode < mode:
                self._wanted_mode = mode
        self._advance()

    def open(self) -> None:
        """Record that the address of the remote is known, and pass on the stop that waited for it."""
        self.is_open = True
        self._advance()

    def listen(self) -> None:
        """Repeat the call from now on, because nothing else reports the end any more."""
        with lock:
            self._is_only_way = True
            mode = self._delivered_mode
        if mode is not None:
            self._ask_again(mode)

    def close(self) -> None:
        """Make no more calls: the remote work has ended, or was given up."""
        with lock:
            self._is_closed = True
            stops = self._take_stops(Mode.KILL) if self._run.outcome is None else []
        for stop in stops:
            stop.acknowledge()
        if self._loop is not None and self._tasks and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_calls)

    def _cancel_calls(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _advance(self) -> None:
        with lock:
            mode = self._wanted_mode
            if mode is None or not self.is_open or self._is_closed or mode in self._requested_modes:
                return
            self._requested_modes.add(mode)
        order = RemoteStop(mode=mode, reason=self._run.token.reason or Reason(), grace=self._grace_left(mode))
        if self._loop is None or not inspect.iscoroutinefunction(code_of(self._tell)):
            own_context = self._context.copy()  # a context can be entered by one thread at a time
            pool.submit(lambda: own_context.run(self._call, order))
            return
        try:
            self._loop.call_soon_threadsafe(self._start, order, context=self._context)
        except RuntimeError as error:  # the loop was closed
            self._failed(mode, error)

    def _grace_left(self, mode: Mode) -> float | None:
        """Return the seconds until INTERRUPT, by the stop that leaves the least time."""
        seconds = []
        for stop in self._run.stops():
            if stop.mode is mode:
                first = next(iter(stop.schedule()), None)
                seconds += [] if first is None else [max(0.0, stop.requested_at + first[1] - clock.now())]
        if seconds:
            return min(seconds)
        return None if mode is Mode.COOPERATIVE else 0.0

    # One call

    def _start(self, order: RemoteStop, answer: Any = None) -> None:
        assert self._loop is not None, "called on the loop"
        if self._is_closed:  # since this was scheduled: the code that saw the end may have closed the client
            if inspect.iscoroutine(answer):
                answer.close()
            return
        task = self._loop.create_task(self._call_async(order, answer), name=f"stoppable tells {self._run.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call_async(self, order: RemoteStop, answer: Any) -> None:
        try:
            end = end_of(await (answer or self._tell(order)))
        except CancelledError as cancel:  # the remote work has ended, or the loop is closing
            self._failed(order.mode, cancel)
            raise
        except Exception as error:
            self._failed(order.mode, error)
        else:
            self._answered(order.mode, end)

    def _call(self, order: RemoteStop) -> None:
        try:
            answer: Any = self._tell(order)
            if self._loop is not None and inspect.isawaitable(answer):  # from a lambda around an async function
                self._loop.call_soon_threadsafe(self._start, order, answer, context=self._context)
                return
            end = end_of(answer)
        except BaseException as error:  # on this thread, no other code could handle it
            self._failed(order.mode, error)
        else:
            self._answered(order.mode, end)

    def _answered(self, mode: Mode, end: Fate | None) -> None:
        with lock:
            if self._delivered_mode is None or self._delivered_mode < mode:
                self._delivered_mode = mode
            stops = self._take_stops(mode)
        for stop in stops:
            stop.acknowledge()
        self._note(mode, end or "received")
        if end is not None:
            self._on_end(end)
        elif self._is_only_way:
            self._ask_again(mode)

    def _take_stops(self, mode: Mode) -> list[Stop]:
        stops = [stop for stop in self._stops if stop.mode <= mode]
        self._stops = [stop for stop in self._stops if stop.mode > mode]
        return stops

    def _failed(self, mode: Mode, error: BaseException) -> None:
        if self._is_closed:
            return
        self._note(mode, f"{type(error).__name__}: {error}")
        if not (isinstance(error, CancelledError) or (self._loop is not None and self._loop.is_closed())):
            self._ask_again(mode)

    def _ask_again(self, mode: Mode) -> None:
        with lock:
            self._requested_modes.discard(mode)
            pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        control.get().call_at(clock.now() + pause, self._advance)

    def _note(self, mode: Mode, answer: str) -> None:
        if self._run.sink is not None:
            self._run.sink.event(self._run, "remote", {"mode": mode.value, "answer": answer})


def end_of(fate: str | None) -> Fate | None:
    """Return how remote work ended, from the name of its fate; None if it has not ended."""
    if fate is None:
        return None
    if fate not in _ENDS:
        raise InvalidArgument(f"{fate!r:.40} is not a fate of remote work: use {', '.join(_ENDS)}")
    return Fate(fate)


_ENDS = tuple(fate for fate in Fate if fate not in _NO_END)


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
        return self._seat.reported_fate

    def identify(self, **ref: object) -> None:
        """Record the address of the remote work once it is known; a stop that came earlier is passed on now.

        It is written to the record of the run (``Run.annotate``), so that the remote work can be found after a crash.
        """
        self.run.annotate(**ref)
        self._seat.link.open()

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
        fate_here = super().fate
        if fate_here is None and self.seat.reported_fate is None and self.seat.run.outcome is not None:
            fate_here = self._fate = self.seat.fate_of_lost()
        return fate_here

    def _note_fate(
        self,
        run: RunNode,
        kind: type[BaseException] | None,  # noqa: ARG002 - only the report of the service counts
        error: BaseException | None,  # noqa: ARG002
    ) -> None:
        if run.outcome is None and self.seat.reported_fate is not None:
            self._fate = self.seat.reported_fate


class _Seat(RemoteParticipant):
    """The participant for the remote work: passes stops on, and keeps what the service reported."""

    __slots__ = ("bell", "effect", "is_parked", "link", "reported_fate", "run")

    is_listed = False  # its boundary is listed instead

    def __init__(self, run: RunNode, tell: Tell, *, is_open: bool) -> None:
        self.run: RunNode = run
        self.reported_fate: Fate | None = None
        self.is_parked: bool = False  # it waits for the code that started it
        self.bell: Bell = Bell()
        self.link: RemoteLink = RemoteLink(run, tell, self.end, is_open=is_open)
        self.effect: _Effect = _Effect(run.name, self)

    def enter(self) -> None:
        """Join the run before the remote work starts; raises AgentStopped if the run was stopped."""
        self.run.admit(self)
        try:
            self.effect.__enter__()
        except BaseException:
            self.reported_fate = Fate.SKIPPED
            self.link.close()
            self.run.withdraw(self)
            raise
        self.effect.holder = self
        self.run.when_ended(self._release)

    def tell(self, stop: Stop) -> None:
        """Pass a stop on."""
        self.link.pass_on(stop)

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Pass a harder mode on; the remote work cannot be forced from here."""
        for seat in targets:
            assert isinstance(seat, cls)
            seat.link.want(_MODES[rung])

    def alive(self) -> bool:
        """Return whether the service has not reported the end."""
        return self.reported_fate is None

    def describe(self) -> str:
        """Name it."""
        return f"remote {self.run.name}"

    def end(self, fate: Fate) -> None:
        """Record how it ended; the first report counts, and one after the run was given up is a late event."""
        run = self.run
        with lock:
            if self.reported_fate is not None:
                return
            self.reported_fate = fate
            if fate not in _BY_ITSELF:
                run.deliver()  # in the service, which executes the run
        self.link.close()
        run.forget(self._release)
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
        if self.run.first_stop is not None and self.reported_fate is None:
            self.link.note_received()
            self.run.lose([])

    def fate_of_lost(self) -> Fate:
        """Return the fate of work that did not end: abandoned if the service got the stop, otherwise unreachable."""
        return Fate.ABANDONED if self.link.has_received else Fate.UNREACHABLE

    def _release(self) -> None:
        _ = self.effect.fate  # fixes it now: a final receipt does not change
        self.link.close()
        self.bell.ring()

    async def gone(self, *, blocking: bool) -> None:
        """Wait until it has ended, or was given up."""
        await self.bell.wait(lambda: self.reported_fate is not None or self.run.outcome is not None, blocking=blocking)


class remote:  # noqa: N801 - reads as a statement: `async with remote(…) as node:`
    """Make work in another service a node of the tree: a child run that ends when that service says so.

    ``tell`` passes a stop on to the service. It is called with a ``RemoteStop`` when the run is stopped, again in every
    harder mode and when the ladder climbs (CANCEL as ``immediate``, KILL as ``kill``), again if it raised, and again
    after the block is left, until it reports the end. It returns the fate of the remote work, or None if the service
    has received the stop and the work goes on; if the service could not be reached, it raises. An async function is
    called on the event loop of the block, a plain one on a separate thread. If the service cannot say whether the work
    has ended, ``tell`` returns ``"told"`` once it has the stop: the run waits no longer, and is not ``lost``.

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
            return self._open_seat(run)
        except BaseException as error:
            await self._edge.__aexit__(type(error), error, error.__traceback__)
            raise

    def __enter__(self) -> RemoteNode:
        if inspect.iscoroutinefunction(code_of(self._tell)):
            raise InvalidArgument(f"{self._tell!r} is async: use `async with remote(…)`, or a plain function")
        refuse_generators(sys._getframe(1), "remote()")
        run = self._edge.__enter__()
        try:
            return self._open_seat(run)
        except BaseException as error:
            self._edge.__exit__(type(error), error, error.__traceback__)
            raise

    def _open_seat(self, run: Run) -> RemoteNode:
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
                if not is_only_own_cancel():  # our own cancel is KILL: the edge takes it back
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
        elif isinstance(error, FOREIGN) and not (isinstance(error, CancelledError) and is_only_own_cancel()):
            seat.link.listen()
            return False  # it propagates at once; the edge stops the run, and the ladder ends the remote work
        elif run.first_stop is None:
            if not seat.link.is_open:
                seat.end(Fate.SKIPPED)  # without an address, it counts as never started
            else:
                run.stop(Mode.IMMEDIATE, Reason.of(f"its block failed: {error!r}", kind=ReasonKind.PARENT))
        seat.link.listen()
        return seat.reported_fate is None


def _as_long_as_the_ladder(run: RunNode) -> float:
    grace = max((stop.grace or 0.0 for stop in run.stops()), default=0.0)
    return run.policy.total(Mode.GRACEFUL) + grace

"""Conversations whose runs can be stopped: their state, ``arun()`` and ``run()``, and what is written after a stop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openhands.sdk.conversation.cancellation import CancellationToken
from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState
from openhands.sdk.event import InterruptEvent

import stoppable
from stoppable import sync
from stoppable.adapters.openhands import names
from stoppable.adapters.openhands.terminals import RunningToolCall, Shells, current_call


class ConversationToken(CancellationToken):  # type: ignore[misc]  # its types are known where OpenHands is installed
    """The token of OpenHands for a run: latched, and never that of a later run."""

    __slots__ = ("run",)

    def __init__(self, run: stoppable.Run) -> None:
        super().__init__()
        self.run: stoppable.Run = run

    def cancel(self) -> None:
        """Stop the run."""
        self.run.stop("immediate", "cancel_token.cancel()")

    @property
    def is_cancelled(self) -> bool:
        """Whether the run or one of its ancestors was stopped; True counts as noticing the stop (delivery)."""
        # Those above it too: a thread may outlive the tool call that started it.
        stopped_runs = [run for run in lineage(self.run) if run.token.stopped]
        for run in stopped_runs:
            run.token.should_stop()
        return bool(stopped_runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConversationToken) and other.run is self.run

    def __hash__(self) -> int:
        return hash(self.run)


def lineage(run: stoppable.Run | None) -> Iterator[stoppable.Run]:
    """Yield a run and those above it."""
    while run is not None:
        yield run
        above: Any = run.parent
        run = above


Background = Literal["end", "keep"]

PENDING_SECONDS = 60.0  # as long as a stop waits for its run in a store

_STARTABLE = (
    ConversationExecutionStatus.IDLE,
    ConversationExecutionStatus.RUNNING,
    ConversationExecutionStatus.PAUSED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings:
    """How the runs of a conversation are started."""

    supervisor: stoppable.Supervisor | sync.Supervisor | None = None
    background: Background = "end"
    owner: str | None = None
    labels: Mapping[str, str] | None = None
    policy: stoppable.Policy | None = None
    limits: stoppable.Limits | None = None


class ConversationTurn:
    """One run of a conversation."""

    def __init__(self, supervised: Supervised, run: stoppable.Run) -> None:
        self.supervised = supervised
        self.run = run
        self.shells: Shells = Shells()
        self.unwound: threading.Event = threading.Event()
        """Set when its body has left OpenHands, or was given up; threads of it may live on."""
        self.is_sealed: bool = False
        """Whether its end has been looked after, so that the conversation can be run again."""


current_turn: contextvars.ContextVar[ConversationTurn | None] = contextvars.ContextVar(
    "stoppable-openhands", default=None
)


class Supervised:
    """The runs of one conversation, and an interrupt that waits for the next one."""

    def __init__(self, settings: ConversationSettings, parent: Supervised | None = None) -> None:
        self.settings = settings
        self.parent = parent
        """The state of the conversation whose tool call made this one."""
        self.turn: ConversationTurn | None = None
        """The newest."""
        self.calls: dict[str, RunningToolCall] = {}
        """The tool calls that are executed now, by their id."""
        call = current_call.get()
        self._maker: Any = None if call is None else call.executor  # what made the conversation
        self._runs: weakref.WeakSet[stoppable.Run] = weakref.WeakSet()
        self._interrupted_at: float | None = None
        self._is_spoken_to = False  # something was said since the newest run began, or since it was paused
        self._starts: set[object] = set()  # calls of run() and arun() whose run has not begun
        self._lock = threading.Lock()

    @property
    def run(self) -> stoppable.Run | None:
        """The newest run."""
        return None if self.turn is None else self.turn.run

    def turn_of(self, run: stoppable.Run) -> ConversationTurn | None:
        """Return the turn of a run, or None if the run never began or a newer one has."""
        return self.turn if self.turn is not None and self.turn.run is run else None

    def is_unsealed(self, run: stoppable.Run) -> bool:
        """Return whether a run that is over was stopped, and left the conversation as it was at that moment."""
        if not run.token.stopped or run.outcome is None or run.outcome.status == "lost":
            return False
        turn = self.turn_of(run)
        return run.started_at is None if turn is None else not turn.is_sealed

    def begin(self, run: stoppable.Run, start: object) -> ConversationTurn:
        """Record that a run has begun; if it was interrupted before, stop it."""
        turn = ConversationTurn(self, run)
        stoppable.on_end(lambda _: turn.unwound.set())
        with self._lock:
            self.turn = turn
            self._runs.add(run)
            self._starts.discard(start)
            at, self._interrupted_at, self._is_spoken_to = self._interrupted_at, None, False
        if at is not None and time.monotonic() - at < PENDING_SECONDS:
            run.stop("immediate", "interrupt() before the run")
        return turn

    @contextlib.contextmanager
    def starting(self) -> Iterator[object]:
        """Note that the block starts a run, until that begins: an interrupt in between is meant for it too."""
        start = object()
        with self._lock:
            self._starts.add(start)
        try:
            yield start
        finally:
            with self._lock:
                self._starts.discard(start)

    def note_message(self) -> None:
        """Forget an interrupt that no run has met, because the user has sent a message since."""
        with self._lock:
            self._interrupted_at, self._is_spoken_to = None, True

    def note_pause(self) -> None:
        """Note that the user has paused the conversation: whoever runs it then wants to resume."""
        with self._lock:
            self._is_spoken_to = False

    def interrupt(self, status: ConversationExecutionStatus, mode: str, reason: str) -> bool:
        """Stop the run, or the next one if there is none; False if there was none."""
        with self._lock:
            run = self.run
            is_over = run is None or run.outcome is not None
            if self._starts or (is_over and self._is_about_to_run(status)):
                self._interrupted_at = time.monotonic()
        if run is None or is_over:
            return False
        run.stop(mode, reason)
        return True

    def _is_about_to_run(self, status: ConversationExecutionStatus) -> bool:
        """Return whether the next run would do what the interrupt is meant to prevent, and not resume after it."""
        is_quiet = status is ConversationExecutionStatus.PAUSED or (self.run is not None and self.run.token.stopped)
        return status in _STARTABLE and (self._is_spoken_to or not is_quiet)

    def interrupt_next(self) -> None:
        """Stop the next run before it does anything."""
        with self._lock:
            self._interrupted_at = time.monotonic()

    def token(self) -> CancellationToken | None:
        """Return the token of the caller's own tool call, or of the newest run for a caller that is in none."""
        here = stoppable.current_run()
        if here is not None and any(run in self._runs for run in lineage(here)):
            return ConversationToken(here)
        run = self.run
        return None if run is None or (run.outcome is not None and not run.token.stopped) else ConversationToken(run)

    def caller(self) -> stoppable.Run | None:
        """Return the parent of a run of this conversation, if its thread has no run.

        A tool may run its sub-agents on plain threads while it waits for them: they belong to the call of the tool that
        made the conversation. Without exactly one such call nobody knows whose thread this is, and a stop of one call
        must not end the sub-agent of another: then they belong to the run of all.
        """
        if stoppable.current_run() is not None or self.parent is None:
            return None
        calls = [call for call in list(self.parent.calls.values()) if call.is_executing]
        candidates = [call.run for call in calls if call.executor is not None and call.executor is self._maker]
        if len(candidates) == 1:
            return candidates[0]
        run = self.parent.run
        is_open = run is not None and (run.outcome is None or run.token.stopped)
        return run if is_open else None


_everywhere: ConversationSettings | None = None


def supervise_all(settings: ConversationSettings | None) -> None:
    """Supervise every conversation of this process that has no settings from ``supervise``."""
    global _everywhere
    _everywhere = settings


def of(conversation: Any) -> Supervised | None:
    """Return the state of a conversation, or None if it is not supervised."""
    supervised: Supervised | None = conversation.__dict__.get("_stoppable")
    if supervised is None and (_everywhere is not None or stoppable.current_run() is not None):
        turn = current_turn.get()
        above = None if turn is None else turn.supervised
        settings = _everywhere or (ConversationSettings() if above is None else above.settings)
        supervised = keep(conversation, Supervised(settings, above))
    return supervised


def keep(conversation: Any, supervised: Supervised) -> Supervised:
    """Set the state of a conversation, unless it has one."""
    current_state: Supervised = conversation.__dict__.setdefault("_stoppable", supervised)
    return current_state


_REFUSAL = "The conversation was interrupted before the action was confirmed"
_UNFINISHED = (ConversationExecutionStatus.RUNNING, ConversationExecutionStatus.IDLE)


def seal(conversation: Any, turn: ConversationTurn | None) -> None:
    """Say that the conversation was interrupted, unless OpenHands itself has, or it had finished.

    It waits for the lock of the state, which an agent that is being initialized holds. It does nothing if a newer run
    has begun by then.
    """
    state = conversation.state
    with state:
        if turn is not None:
            if turn.supervised.turn is not turn:
                return
            turn.is_sealed = True
            names.cancel_token(conversation)
        refuse_pending(conversation, _REFUSAL)
        status = state.execution_status
        orphans = ConversationState.get_unmatched_actions(state.active_branch())
        if status in _UNFINISHED or (orphans and status is ConversationExecutionStatus.PAUSED):
            names.answer_orphans(conversation)
            state.execution_status = ConversationExecutionStatus.PAUSED
            names.tell(conversation, InterruptEvent())


def refuse_pending(conversation: Any, reason: str) -> None:
    """Refuse the actions that wait for a confirmation, if any: the next run would take itself for the confirmation."""
    if conversation.state.execution_status is ConversationExecutionStatus.WAITING_FOR_CONFIRMATION:
        conversation.reject_pending_actions(reason)


_SEAL_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_NAME, _CHILD = "openhands", "sub-agent"

Body = Callable[[], Awaitable[None]]

_background: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references


async def arun(conversation: Any, supervised: Supervised, plain: Callable[[Any], Awaitable[None]]) -> None:
    """Run a conversation as a run in a separate task, so that the caller's cancel and stoppable's never mix."""
    with supervised.starting() as start:
        before = supervised.turn
        if before is not None and not before.unwound.is_set():
            # The caller of an earlier run may have been cancelled; two runs on one loop would share the state's lock.
            await stoppable.to_thread(before.unwound.wait)
        body = functools.partial(_body, conversation, supervised, plain, start)
        run = await _execute_run(conversation, supervised, body)
    if supervised.is_unsealed(run):
        await stoppable.to_thread(seal, conversation, supervised.turn_of(run))
    stoppable.check()
    outcome = run.outcome
    assert outcome is not None, "it is over"
    if outcome.status == "failed" and outcome.error is not None:
        raise outcome.error


async def _execute_run(conversation: Any, supervised: Supervised, body: Body) -> stoppable.Run:
    """Execute a body as a run, and return the run when it is over; if the caller is cancelled, the run is stopped."""
    settings, supervisor = supervised.settings, supervised.settings.supervisor
    if isinstance(supervisor, sync.Supervisor):
        raise stoppable.InvalidArgument("arun() needs a stoppable.Supervisor: stoppable.sync.Supervisor is for run()")
    if stoppable.current_run() is not None:
        handle = await stoppable.spawn(body, name=_CHILD)
    elif supervisor is None or supervised.caller() is not None:
        return await _in_task(_open_unsupervised(conversation, supervised), body)
    else:
        handle = await supervisor.start(body, name=_NAME, **_options(conversation, settings))
    await handle.join()
    return handle.run


async def _in_task(opened: stoppable.open_run, body: Body) -> stoppable.Run:
    """Execute a body as a run with an owner, limits or a parent: ``spawn`` takes none of them."""
    runs: list[stoppable.Run] = []

    async def execute() -> None:
        async with opened as run:
            runs.append(run)
            await body()

    task = asyncio.create_task(execute())
    _background.add(task)
    task.add_done_callback(_forget)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        for run in runs:
            reason = stoppable.Reason.of("CancelledError from outside", kind=stoppable.ReasonKind.EXTERNAL)
            run.stop("immediate", reason)
        if not runs:
            task.cancel()
        raise
    if not runs:
        task.result()
    return runs[0]


def _forget(task: asyncio.Task[None]) -> None:
    _background.discard(task)
    if not task.cancelled():
        task.exception()  # how the run ended is in its outcome


async def _body(
    conversation: Any, supervised: Supervised, plain: Callable[[Any], Awaitable[None]], start: object
) -> None:
    run = stoppable.current_run()
    assert run is not None, "it is the body of one"
    turn = supervised.begin(run, start)
    current_turn.set(turn)
    try:
        stoppable.check()  # an interrupt() may have come before
        await plain(conversation)
    finally:
        try:
            if run.token.stopped:
                with stoppable.shielded(_SEAL_SECONDS):
                    await stoppable.to_thread(seal, conversation, turn)
        finally:
            _end_jobs(turn)
            turn.unwound.set()


def run(conversation: Any, supervised: Supervised, plain: Callable[[Any], None]) -> None:
    """Run a conversation as a run, on the calling thread."""
    open_run: stoppable.Run | None = None
    try:
        with supervised.starting() as start, _open(conversation, supervised) as entered:
            open_run = entered
            _block(conversation, supervised.begin(entered, start), plain)
    except (stoppable.RunStopped, stoppable.RunLost):
        if open_run is None:  # its body never ran
            seal(conversation, None)
    except KeyboardInterrupt:
        while open_run is not None and open_run.outcome is None:  # as long as the ladder; another Ctrl-C leaves at once
            threading.Event().wait(_LOOK_SECONDS)
        raise
    if open_run is not None and supervised.is_unsealed(open_run):
        seal(conversation, supervised.turn_of(open_run))


def _open(conversation: Any, supervised: Supervised) -> Any:
    settings, supervisor = supervised.settings, supervised.settings.supervisor
    if supervisor is None or supervised.caller() is not None or stoppable.current_run() is not None:
        return _open_unsupervised(conversation, supervised)
    blocking = supervisor.blocking if isinstance(supervisor, stoppable.Supervisor) else supervisor
    return blocking.open_run(_NAME, **_options(conversation, settings))


def _open_unsupervised(conversation: Any, supervised: Supervised) -> stoppable.open_run:
    """Return a run that no supervisor keeps, or a child of one that may be kept."""
    settings, caller = supervised.settings, supervised.caller()
    if caller is not None or stoppable.current_run() is not None:
        return stoppable.open_run(_CHILD, parent=caller)
    labels = _labels(conversation, settings)
    return stoppable.open_run(
        _NAME, owner=settings.owner, labels=labels, limits=settings.limits, policy=settings.policy
    )


def _block(conversation: Any, turn: ConversationTurn, plain: Callable[[Any], None]) -> None:
    token = current_turn.set(turn)
    try:
        stoppable.check()
        plain(conversation)
    except KeyboardInterrupt:
        # Before the clean-up below, which is that of a stopped run; the exception itself propagates.
        turn.run.stop("immediate", stoppable.Reason.of("Ctrl-C", kind=stoppable.ReasonKind.SHUTDOWN))
        raise
    finally:
        try:
            if turn.run.token.stopped:
                with stoppable.shielded(_SEAL_SECONDS):
                    seal(conversation, turn)
        finally:
            _end_jobs(turn)
            current_turn.reset(token)
            turn.unwound.set()


def _end_jobs(turn: ConversationTurn) -> None:
    if turn.run.token.stopped and turn.supervised.settings.background == "end":
        turn.shells.end_jobs()


def _options(conversation: Any, settings: Any) -> dict[str, Any]:
    return {
        "key": f"openhands:{conversation.id}",
        "owner": settings.owner,
        "labels": _labels(conversation, settings),
        "limits": settings.limits,
        "policy": settings.policy,
    }


def _labels(conversation: Any, settings: Any) -> dict[str, str]:
    return {"conversation": str(conversation.id), **(settings.labels or {})}

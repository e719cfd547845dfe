"""The state of a conversation whose runs can be stopped."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openhands.sdk.conversation.cancellation import CancellationToken
from openhands.sdk.conversation.state import ConversationExecutionStatus

import stoppable
from stoppable import sync
from stoppable.adapters.openhands.terminals import Call, Shells, current_call
from stoppable.adapters.openhands.tokens import RunToken, lineage

Background = Literal["end", "keep"]

PENDING_SECONDS = 60.0  # as long as a stop waits for its run in a store

_STARTABLE = (
    ConversationExecutionStatus.IDLE,
    ConversationExecutionStatus.RUNNING,
    ConversationExecutionStatus.PAUSED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the runs of a conversation are started."""

    supervisor: stoppable.Supervisor | sync.Supervisor | None = None
    background: Background = "end"
    owner: str | None = None
    labels: Mapping[str, str] | None = None
    policy: stoppable.Policy | None = None
    limits: stoppable.Limits | None = None


class Turn:
    """One run of a conversation."""

    def __init__(self, supervised: Supervised, run: stoppable.Run) -> None:
        self.supervised = supervised
        self.run = run
        self.shells: Shells = Shells()
        self.unwound: threading.Event = threading.Event()
        """Set when its body has left OpenHands, or was given up; threads of it may live on."""
        self.is_sealed: bool = False
        """Whether its end has been looked after, so that the conversation can be run again."""


current_turn: contextvars.ContextVar[Turn | None] = contextvars.ContextVar("stoppable-openhands", default=None)


class Supervised:
    """The runs of one conversation, and an interrupt that waits for the next one."""

    def __init__(self, settings: Settings, parent: Supervised | None = None) -> None:
        self.settings = settings
        self.parent = parent
        """The state of the conversation whose tool call made this one."""
        self.turn: Turn | None = None
        """The newest."""
        self.calls: dict[str, Call] = {}
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

    def turn_of(self, run: stoppable.Run) -> Turn | None:
        """Return the turn of a run, or None if the run never began or a newer one has."""
        return self.turn if self.turn is not None and self.turn.run is run else None

    def is_unsealed(self, run: stoppable.Run) -> bool:
        """Return whether a run that is over was stopped, and left the conversation as it was at that moment."""
        if not run.token.stopped or run.outcome is None or run.outcome.status == "lost":
            return False
        turn = self.turn_of(run)
        return run.started_at is None if turn is None else not turn.is_sealed

    def begin(self, run: stoppable.Run, start: object) -> Turn:
        """Record that a run has begun; if it was interrupted before, stop it."""
        turn = Turn(self, run)
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

    def spoken_to(self) -> None:
        """Forget an interrupt that no run has met, because the user has sent a message since."""
        with self._lock:
            self._interrupted_at, self._is_spoken_to = None, True

    def paused(self) -> None:
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
            return RunToken(here)
        run = self.run
        return None if run is None or (run.outcome is not None and not run.token.stopped) else RunToken(run)

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


_everywhere: Settings | None = None


def supervise_all(settings: Settings | None) -> None:
    """Supervise every conversation of this process that has no settings from ``supervise``."""
    global _everywhere
    _everywhere = settings


def of(conversation: Any) -> Supervised | None:
    """Return the state of a conversation, or None if it is not supervised."""
    found: Supervised | None = conversation.__dict__.get("_stoppable")
    if found is None and (_everywhere is not None or stoppable.current_run() is not None):
        turn = current_turn.get()
        above = None if turn is None else turn.supervised
        settings = _everywhere or (Settings() if above is None else above.settings)
        found = keep(conversation, Supervised(settings, above))
    return found


def keep(conversation: Any, supervised: Supervised) -> Supervised:
    """Set the state of a conversation, unless it has one."""
    kept: Supervised = conversation.__dict__.setdefault("_stoppable", supervised)
    return kept

"""The state of a conversation whose runs can be stopped."""

from __future__ import annotations

import contextvars
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openhands.sdk.conversation.cancellation import CancellationToken
from openhands.sdk.conversation.state import ConversationExecutionStatus

import stoppable
from stoppable import sync
from stoppable.adapters.openhands.terminals import Shells
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


current_turn: contextvars.ContextVar[Turn | None] = contextvars.ContextVar("stoppable-openhands", default=None)


class Supervised:
    """The runs of one conversation, and an interrupt that waits for the next one."""

    def __init__(self, settings: Settings, parent: Supervised | None = None) -> None:
        self.settings = settings
        self.parent = parent
        """The state of the conversation whose tool call made this one."""
        self.turn: Turn | None = None
        """The newest."""
        self.calls: dict[str, stoppable.Run] = {}
        """The tool calls that are executed now, by their id."""
        self._runs: weakref.WeakSet[stoppable.Run] = weakref.WeakSet()
        self._interrupted_at: float | None = None
        self._is_spoken_to = True  # something was said since the newest run began
        self._lock = threading.Lock()

    @property
    def run(self) -> stoppable.Run | None:
        """The newest run."""
        return None if self.turn is None else self.turn.run

    def begin(self, run: stoppable.Run) -> Turn:
        """Record that a run has begun; if it was interrupted before, stop it."""
        turn = Turn(self, run)
        stoppable.on_end(lambda _: turn.unwound.set())
        with self._lock:
            self.turn = turn
            self._runs.add(run)
            at, self._interrupted_at, self._is_spoken_to = self._interrupted_at, None, False
        if at is not None and time.monotonic() - at < PENDING_SECONDS:
            run.stop("immediate", "interrupt() before the run")
        return turn

    def spoken_to(self) -> None:
        """Forget an interrupt that no run has met, because the user has sent a message since."""
        with self._lock:
            self._interrupted_at, self._is_spoken_to = None, True

    def interrupt(self, status: ConversationExecutionStatus, mode: str, reason: str) -> bool:
        """Stop the run, or the next one if there is none; False if there was none."""
        with self._lock:
            run = self.run
            if run is None or run.outcome is not None:
                is_repeated = run is not None and run.token.stopped and not self._is_spoken_to
                if status in _STARTABLE and not is_repeated:
                    self._interrupted_at = time.monotonic()
                return False
        run.stop(mode, reason)
        return True

    def token(self) -> CancellationToken | None:
        """Return the token of the caller's own tool call, or of the newest run for a caller that is in none."""
        here = stoppable.current_run()
        if here is not None and any(run in self._runs for run in lineage(here)):
            return RunToken(here)
        run = self.run
        return None if run is None or (run.outcome is not None and not run.token.stopped) else RunToken(run)

    def caller(self) -> stoppable.Run | None:
        """Return the parent of a run of this conversation, if its thread has no run.

        A tool may run its sub-agents on plain threads while it waits for them.
        """
        if stoppable.current_run() is not None or self.parent is None:
            return None
        return next(reversed(self.parent.calls.values()), None)


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

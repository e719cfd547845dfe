"""The report card of an agent: what happened in each trial, what is wrong, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

MODES = ("graceful", "immediate", "kill")
KINDS = ("llm", "tool", "store", "spawn", "subrun", "remote", "thread", "http")
"""The kinds of boundaries that stoppable itself enters, or that its docs name."""

# The first entry that a problem contains counts; a problem has none only if a new one was not entered here.
_PROBLEMS = {
    "Event loop is closed": (
        "a client belongs to one event loop: make it inside the agent, or make the agent `async def`",
        "docs/how-to/clients.md",
    ),
    "it failed by itself": ("mend this first: `stoppable run` shows the traceback", "docs/cli.md#run"),
    "effect after the stop": (
        "put it into `with stoppable.boundary(kind, name):`, which a stopped run does not enter",
        "docs/how-to/asyncio.md",
    ),
    "left a thread running": (
        "join it before the agent returns, or start it with stoppable.to_thread()",
        "docs/how-to/threads.md",
    ),
    "left a process running": (
        "start it with subprocess or stoppable.run_process(), which a stop ends",
        "docs/how-to/processes.md",
    ),
    "(thread ": (
        "Python cannot end a thread: give its calls a timeout, or use a process, as in `stoppable run --process`",
        "docs/limits.md",
    ),
    "could not be ended": (
        "let CancelledError pass, and do not block the event loop: use stoppable.to_thread() for blocking calls",
        "docs/how-to/asyncio.md",
    ),
    "failed:": (
        "the agent raised this before it noticed the stop: `stoppable run` shows the traceback",
        "docs/cli.md#run",
    ),
    "had to be killed": (
        "call stoppable.check() in long loops, and let CancelledError and AgentStopped pass",
        "docs/how-to/asyncio.md",
    ),
    "_thread.": ("use threading.Thread, which a stop follows", "docs/how-to/plain-code.md#what-is-not-seen"),
    "os.": ("use subprocess, which a stop follows", "docs/how-to/plain-code.md#what-is-not-seen"),
    "run_coroutine_threadsafe": (
        "await it on the agent's own event loop, or put the call into a boundary",
        "docs/how-to/plain-code.md#what-is-not-seen",
    ),
    "nothing was tried": (
        "call the agent with an input that reaches the same calls each time",
        "docs/cli.md#check",
    ),
}

_NOT_TRIED = "nothing was tried: no run reached the place where it was to be stopped"
_WORDS_FOR_MODELS = ("model", "chat", "completion", "prompt", "gpt", "claude", "gemini", "inference")
_WORDS_FOR_TOOLS = ("func", "action", "skill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One stopped run of the agent, or one that failed by itself, and what was wrong with its end."""

    at: str
    mode: str
    status: str
    rung: str | None
    seconds: float
    reached: bool
    """Whether it came to the place where it was to be stopped; if not, nothing was tried."""
    problems: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCard:
    """The results of stopping an agent at each of its boundaries."""

    agent: str
    boundaries: tuple[str, ...]
    trials: tuple[Trial, ...]
    rounds: tuple[str, ...]
    """What it starts in ways that no stop can follow, with file and line."""
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether a stop was tried, and no problem was found."""
        return not self.problems and not any(trial.problems for trial in self.trials)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the agent as a whole."""
        rounds = tuple(f"went round the boundaries: {start}" for start in self.rounds)
        was_tried = any(trial.problems or (trial.reached and trial.mode in MODES) for trial in self.trials)
        return rounds if was_tried else (*rounds, _NOT_TRIED)

    @property
    def remedies(self) -> tuple[str, ...]:
        """What to do about each of these problems."""
        return tuple(remedy for problem in self.problems for remedy in remedies_for([problem]))


def remedies_for(problems: Iterable[str]) -> tuple[str, ...]:
    """Return what to do about problems, each remedy once."""
    remedies = [_PROBLEMS[next(part for part in _PROBLEMS if part in problem)] for problem in problems]
    return tuple(dict.fromkeys(f"{remedy}: {page}" for remedy, page in remedies))


def doubtful_kinds(labels: Iterable[str]) -> list[str]:
    """Return a note for each kind of boundary that stoppable does not know, with the one that was probably meant."""
    notes = {}
    for label in labels:
        kind = label.partition(":")[0]
        if kind not in KINDS and kind not in notes:
            guess = _guess_kind(kind)
            hint = f"did you mean {guess!r}?" if guess else f"it has {', '.join(KINDS)}; your own are fine too"
            notes[kind] = f"{kind!r} ({label}) is not a kind that stoppable knows: {hint}"
    return list(notes.values())


def _guess_kind(kind: str) -> str | None:
    lowered = kind.lower()
    if any(word in lowered for word in _WORDS_FOR_MODELS):
        return "llm"
    if any(word in lowered for word in _WORDS_FOR_TOOLS):
        return "tool"
    return next(iter(difflib.get_close_matches(lowered, KINDS, n=1)), None)

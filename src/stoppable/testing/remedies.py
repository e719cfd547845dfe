"""What to do about each problem that ``stoppable check`` finds, in one line with the page that says more."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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

_WORDS_FOR_MODELS = ("model", "chat", "completion", "prompt", "gpt", "claude", "gemini", "inference")
_WORDS_FOR_TOOLS = ("func", "action", "skill")


def remedies_for(problems: Iterable[str]) -> tuple[str, ...]:
    """Return what to do about problems, each remedy once."""
    found = [_PROBLEMS[next(part for part in _PROBLEMS if part in problem)] for problem in problems]
    return tuple(dict.fromkeys(f"{remedy}: {page}" for remedy, page in found))


def doubtful_kinds(labels: Iterable[str]) -> list[str]:
    """Return a note for each kind of boundary that stoppable does not know, with the one that was probably meant."""
    notes = {}
    for label in labels:
        kind = label.partition(":")[0]
        if kind not in KINDS and kind not in notes:
            meant = _probably_meant(kind)
            hint = f"did you mean {meant!r}?" if meant else f"it has {', '.join(KINDS)}; your own are fine too"
            notes[kind] = f"{kind!r} ({label}) is not a kind that stoppable knows: {hint}"
    return list(notes.values())


def _probably_meant(kind: str) -> str | None:
    lowered = kind.lower()
    if any(word in lowered for word in _WORDS_FOR_MODELS):
        return "llm"
    if any(word in lowered for word in _WORDS_FOR_TOOLS):
        return "tool"
    return next(iter(difflib.get_close_matches(lowered, KINDS, n=1)), None)

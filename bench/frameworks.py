"""What a stop does to agents of nine frameworks that know nothing of stoppable: only `spawn()` and `instrument()`.

Each framework is measured by frameworks_unmodified/measure.py, in a process and an environment of its own, which
`make bench-frameworks` makes. A run of all of them writes bench/results/frameworks.md; names choose some, and only
print their tables.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import facts
from table import write

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results/frameworks.md"
_SLOW_SECONDS = 3.0
"""More than what is in flight takes, also on a busy machine: a model call of 0.7 s, and a tool of 0.7 s."""
_MOST_SECONDS = 900
SCENES = {
    "a": "a model call that will ask for an async tool, and takes 0.7 s",
    "b": "a stream of 20 tokens, 5 per second, after the fifth",
    "c": "a sync tool, which has an effect every 0.1 s for 0.7 s, after the second",
    "d": "an async tool that does the same",
    "e": "both, asked for together",
    "e_sub": "an async tool of an agent that is a tool of another one",
}

# stoppable 0.2 (05dc727), measured on 2026-11-17: graceful and immediate, or both where they were not told apart
BEFORE = {
    "openai-agents": (
        "**a begins a tool, b streams to its end, e_sub 9 s with 9 tools and 9 model calls**, the receipt is empty",
        "right",
    ),
    "pydantic-ai": (
        "**a, d, e 11 s with 10–11 tools and 11 model calls**, the receipt is empty; **b `completed`**",
        "right",
    ),
    "mcp": ("**2 s, 2 further tools**, blind", "async right, **sync 5 effects after `stopped`**"),
    "llama-index": ("**b 11 s, a begins a tool**; the rest 0.8–1.0 s", "0.0–0.8 s"),
    "autogen-agentchat": ("**11 s, 8–9 tools**", "**d, e_sub: 5 effects after `stopped`**"),
    "agent-framework": ("**11 s, 5–9 tools**, the receipt is empty", "right"),
    "crewai": ("right, 0.7–2.7 s, every node is a nameless `thread`", ""),
    "smolagents": ("**`lost` after 7–18 s with 5–12 tools**", ""),
    "strands-agents": ("**1.4–3.5 s; e_sub: next turn refused**", ""),
}
Cell = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What was measured of one framework."""

    name: str
    versions: str = ""
    cells: tuple[Cell, ...] = ()
    failure: str = ""

    def of(self, mode: str) -> list[Cell]:
        return [cell for cell in self.cells if cell["mode"] == mode]


def measure(name: str) -> Framework:
    """Measure one framework in its own environment."""
    python = ROOT / f".venv-fw-{name}/bin/python"
    if not python.exists():
        return Framework(name=name, failure="it could not be installed")
    program = ROOT / "bench/frameworks_unmodified/measure.py"
    with tempfile.TemporaryDirectory() as folder:
        output, noise = Path(folder) / "cells", Path(folder) / "noise"
        with noise.open("w") as file:
            command = [python, program, f"with_{name.replace('-', '_')}", output]
            try:
                code = subprocess.run(command, stdout=file, stderr=file, timeout=_MOST_SECONDS, check=False).returncode
            except subprocess.TimeoutExpired:
                code = None
        lines = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
        said = noise.read_text().strip().splitlines()[-1:]
    if not lines:
        return Framework(name=name, failure=f"it could not be measured: {' '.join(said)[:200]}")
    failure = "" if code == 0 else f"the process ended with {code}"
    return Framework(name=name, versions=lines[0]["versions"], cells=tuple(lines[1:]), failure=failure)


# What is wrong in a cell, in the words of the tables


def wrong_end(cell: Cell) -> list[str]:
    """Return what is wrong with the end of a run."""
    words = []
    if cell["tools_after"]:
        words.append(plural(cell["tools_after"], "tool") + " begun")
    if cell["model_calls_after"]:
        words.append(plural(cell["model_calls_after"], "model call"))
    if cell["effects_after"]:
        words.append(plural(cell["effects_after"], "effect") + " after the end")
    if cell["still_answering"]:
        words.append("the model still answers")
    if cell["status"] != "stopped":
        words.append(f"`{cell['status']}`")
    return words


def is_slow(cell: Cell) -> bool:
    return cell["seconds"] is None or cell["seconds"] > _SLOW_SECONDS


def names(cell: Cell) -> str:
    """Return how the receipt lists what ran: by name, in part, as something else or not at all."""
    labels = " ".join((*cell["in_flight"], *cell["nodes"]))
    known = [label in labels for label in cell["runs"]]
    if all(known):
        return "by name"
    return "in part" if any(known) else "as something else" if labels else "not at all"


def is_forgetful(cell: Cell) -> bool:
    """Return whether the next turn knows nothing of what the agent did, though there was something to keep."""
    is_cut_call = cell["scene"] == "a" and not cell["tools_after"]
    return not is_cut_call and "A" not in cell["history"]


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# The tables


def summary_row(framework: Framework) -> list[str]:
    graceful, immediate = BEFORE[framework.name]
    before = f"graceful: {graceful}; immediate: {immediate}" if immediate else f"both: {graceful}"
    title = f"**{framework.name}**"
    if not framework.cells:
        return [title, before, f"**{framework.failure}**", "", "", ""]
    title += f" {framework.versions.split(', ')[0].split()[1]}"
    ends = [", ".join(map(end_in_short, framework.of(mode))) for mode in ("graceful", "immediate")]
    return [title, before, *ends, receipts(framework), next_turns(framework)]


def end_in_short(cell: Cell) -> str:
    if cell["failure"]:
        return f"**{cell['scene']} not measured**"
    seconds = "" if cell["seconds"] is None else f" {cell['seconds']:.2f}"
    text = f"{cell['scene']}{seconds}" + (f" ({', '.join(wrong_end(cell))})" if wrong_end(cell) else "")
    return f"**{text}**" if wrong_end(cell) or is_slow(cell) else text


def receipts(framework: Framework) -> str:
    return grouped(framework, names, right={"by name"})


def next_turns(framework: Framework) -> str:
    def words(cell: Cell) -> str:
        return "refused" if cell["refused"] else "valid, but all is forgotten" if is_forgetful(cell) else "valid"

    return grouped(framework, words, right={"valid"})


def grouped(framework: Framework, words: Callable[[Cell], str], right: set[str]) -> str:
    """Write the cells that have the same words together; `!` is an immediate stop."""
    groups: dict[str, list[str]] = {}
    for cell in framework.cells:
        if not cell["failure"]:
            groups.setdefault(words(cell), []).append(label(cell))
    texts = {word: f"{word}: {', '.join(cells)}" for word, cells in groups.items()}
    if len(groups) == 1:
        texts = {word: f"{word} in all" for word in groups}
    return "; ".join(text if word in right else f"**{text}**" for word, text in texts.items())


def label(cell: Cell) -> str:
    return cell["scene"] + ("!" if cell["mode"] == "immediate" else "")


def details(framework: Framework) -> Iterator[str]:
    yield from ("", f"### {framework.versions or framework.name}", "")
    if framework.failure:
        yield from (f"**{framework.failure}**", "")
    yield row("", "seconds", "status", "after the stop", "effects after the end", "in flight, and what became of it")
    yield "|---|---:|---|---|---:|---|"
    for cell in framework.cells:
        if cell["failure"]:
            yield row(label(cell), "", f"**{cell['failure']}**", "", "", "")
            continue
        begun = ", ".join(
            plural(cell[key], what) for key, what in (("tools_after", "tool"), ("model_calls_after", "model call"))
        )
        seconds = "" if cell["seconds"] is None else f"{cell['seconds']:.3f}"
        yield row(
            label(cell),
            bold(seconds, is_slow(cell)),
            bold(cell["status"], cell["status"] != "stopped"),
            bold(begun, bool(cell["tools_after"] or cell["model_calls_after"])),
            bold(str(cell["effects_after"]), bool(cell["effects_after"])),
            bold(", ".join(f"`{node}`" for node in cell["nodes"]) or "nothing", names(cell) != "by name"),
        )
    shapes = ", ".join(bold(f"{label(cell)} `{cell['history']}`", cell["refused"]) for cell in framework.cells)
    yield from ("", f"The next turn: {shapes}")


def bold(text: str, is_wrong: bool) -> str:
    return f"**{text}**" if is_wrong and text else text


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# The reading


def places(frameworks: Iterable[Framework], is_wrong: Callable[[Cell], bool]) -> str:
    found = {
        each.name: [label(cell) for cell in each.cells if not cell["failure"] and is_wrong(cell)] for each in frameworks
    }
    return "; ".join(f"{name} {', '.join(cells)}" for name, cells in found.items() if cells)


# what may be wrong in a cell, and why it is
READING: dict[str, Callable[[Cell], bool]] = {
    """A model call is begun after the stop. This must not happen: requests are boundaries.""": (
        lambda cell: bool(cell["model_calls_after"])
    ),
    """A tool is begun after the stop. The answer that was in flight is paid for and complete, and the framework calls
    the tool in pure Python, where there is nothing to see. The tool ends at its first request, command or thread, and
    the model gets no further turn. A `boundary("tool")` in the tool, or an adapter, refuses it. Frameworks that stream
    by default are right, because the stream ends before it asks for the tool, and so are those that call every tool on
    a thread.""": lambda cell: bool(cell["tools_after"]),
    """It takes more than three seconds. The stop is delivered at once, and nothing is begun. But the framework waits
    for something that a task would have done which the stop has ended, so the run ends at CANCEL, after the whole
    grace. An adapter, or an immediate stop, ends it at once.""": is_slow,
    """Effects after the end. The tool is in the process of an MCP server, which does not belong to the run. The cancel
    of the protocol does not end a sync tool, and the client cannot tell. The receipt does not list the call. It needs
    an adapter.""": lambda cell: bool(cell["effects_after"]),
    """The run is not `stopped`.""": lambda cell: cell["status"] != "stopped",
    """The model server still answers 100 ms after the end. The connection was not closed.""": (
        lambda cell: cell["still_answering"]
    ),
    """The receipt does not name what ran. Model calls are named. A sync tool is listed as the function that the
    framework gives to its thread: the tool itself, or a wrapper. A tool that the framework calls directly, as it calls
    async ones, is not listed without a boundary, but the run waits for it, or cuts it.""": (
        lambda cell: names(cell) != "by name"
    ),
    """The next turn is refused. The session has a tool call without a result. It needs an adapter.""": (
        lambda cell: cell["refused"]
    ),
    """The next turn knows nothing of the stopped one. The session is valid, but the framework writes a turn when it is
    complete: text that the user has seen, and tools that have had effects, are forgotten. It needs an adapter. CrewAI
    has no session; that of mcp is the loop's own.""": is_forgetful,
}


def reading(frameworks: list[Framework]) -> Iterator[str]:
    cells = [cell for each in frameworks for cell in each.cells if not cell["failure"]]
    ends = sum(not wrong_end(cell) and not is_slow(cell) for cell in cells)
    valid = sum(not cell["refused"] for cell in cells)
    yield (
        f"Of {len(cells)} stops, {ends} are right until the end of the run: it is `stopped` when what was in flight has"
        " ended, nothing is begun after the stop, nothing has effects after the end, and the model server has nothing"
        f" left to answer. After {valid} the next turn of the user is valid. What remains wrong:"
    )
    yield ""
    right = []
    for text, is_wrong in READING.items():
        title, _, why = " ".join(text.split()).partition(". ")
        where = places(frameworks, is_wrong)
        if where:
            yield f"- **{title}:** {where}. {why}"
        else:
            right.append(title[0].lower() + title[1:].rstrip("."))
    yield from ("", f"Nowhere: {'; '.join(right)}." if right else "")


METHOD = (
    "Written by `make bench-frameworks`. Agents of nine frameworks, as their documentation writes them, are stopped"
    " with nothing but `stoppable.spawn(agent)` and `stoppable.instrument()`. They talk to a scripted model server over"
    " their real clients; the model asks for tools again and again. One round of each cell. Wrong is bold."
)
NEXT_TURN = (
    "The next turn is what the model gets when the user writes again: u is the user, A the assistant (with text, with"
    " so many calls), t the result of a call."
)


def page(frameworks: list[Framework]) -> str:
    packages = "; ".join(each.versions or f"{each.name}: {each.failure}" for each in frameworks)
    header = row("framework", "before (0.2, 2026-11-17)", "graceful", "immediate", "receipt lists it", "next turn")
    lines = ["# Frameworks without an adapter", "", METHOD, ""]
    lines += [f"- {name}: {value}" for name, value in facts([]) if name != "Packages"]
    lines += [f"- Packages: {packages}", "", *(f"- **{name}**: {what}" for name, what in SCENES.items())]
    lines += ["- `!` is an immediate stop. Times are seconds from the stop to the end of the run."]
    lines += ["- The figures before are of other agents and tools that took about as long.", ""]
    lines += [header, "|---" * 6 + "|", *(row(*summary_row(each)) for each in frameworks), ""]
    lines += ["## What it says", "", *reading(frameworks), "", "## Every cell", "", NEXT_TURN]
    lines += [line for each in frameworks for line in details(each)]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BEFORE)}")
    chosen = parser.parse_args().names
    frameworks = []
    for name in chosen or BEFORE:
        frameworks.append(measure(name))
        print(*details(frameworks[-1]), sep="\n", flush=True)
    if not chosen:
        write(RESULTS, page(frameworks))


if __name__ == "__main__":
    sys.exit(main())

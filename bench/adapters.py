"""What the adapter of a framework costs: a model call, a tool call and a streamed token, with it and without.

`make bench-adapters` calls it, in the environments of all adapters. Each framework is measured in two processes of its
own environment, one as it is and one that starts each turn as a run with the adapter, which take turns. A scripted
model server answers both at once, in a third process; what counts is the CPU time of the two, with all of their
threads, which other processes change little. Names choose some frameworks, whose tables are replaced in the page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import inspect
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import facts  # noqa: E402
from stoppable.testing import ModelServer, Reply, ToolCall  # noqa: E402
from table import Row, Section, Target, as_markdown, as_text, summary, write  # noqa: E402

RESULTS = ROOT / "bench/results/adapters.md"
ROUNDS = 9
STEPS = 8
CALLS = 16
TOKENS = 500
TURNS = 4
LIMIT = Target(limit=1.05)
METHOD = (
    "Written by `make bench-adapters`. CPU time of a process that has the adapter and starts each turn as a run,"
    f" beside that of one that has not; they take turns. The median of {ROUNDS} rounds is the cost; × floor is the"
    " median of the ratios of the rounds. A turn: one model call, and the start and the end of the run. A tool call:"
    f" what each further one of {CALLS} costs that the model asks for together; the tool returns at once. A model call:"
    f" what each further one of a turn costs, without the tool call that it asks for. A token: what each further one of"
    f" {TOKENS} of a stream costs. The model answers at once over loopback: how long a real one takes is neither in the"
    " cost nor in the floor, because it is no CPU time. Nothing costs less with an adapter: how far some ratios are"
    " below 1 shows how much is noise, which beside other work is more than the 5 % that an adapter may cost."
)
_FINAL = ToolCall(name="final_answer", arguments=json.dumps({"answer": "Fine."}), id="call-final")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How one framework is measured."""

    name: str
    adapter: str
    """Its module; it is also the name of the folder of its tests."""
    plain: str
    """The class of its sessions, which knows nothing of stoppable."""
    package: str
    stoppable: str = ""
    """The class of those with the adapter, if that is not installed once per process."""
    is_blocking: bool = False
    """Whether its tools are plain functions; others have coroutines."""
    has_cities: bool = False
    """Whether its tools have a parameter, because the framework refuses to repeat a call."""
    final: tuple[ToolCall, ...] = ()
    """The tool that a model calls to end a turn."""

    @property
    def python(self) -> Path:
        """Return the interpreter of its environment."""
        return ROOT / f".venv-{self.name}/bin/python"


FRAMEWORKS = (
    Framework(
        name="openai-agents",
        adapter="openai_agents",
        plain="bench.frameworks_unmodified.with_openai_agents:Agents",
        package="openai-agents",
    ),
    Framework(
        name="pydantic-ai",
        adapter="pydantic_ai",
        plain="bench.frameworks_unmodified.with_pydantic_ai:PydanticAI",
        stoppable="tests.adapters.pydantic_ai.test_scenarios:StoppableAgents",
        package="pydantic-ai-slim",
    ),
    Framework(
        name="agent-framework",
        adapter="agent_framework",
        plain="bench.frameworks_unmodified.with_agent_framework:AgentFramework",
        stoppable="tests.adapters.agent_framework.test_scenarios:StoppableAgents",
        package="agent-framework-core",
    ),
    Framework(
        name="smolagents",
        adapter="smolagents",
        plain="bench.frameworks_unmodified.with_smolagents:Smolagents",
        package="smolagents",
        is_blocking=True,
        final=(_FINAL,),
    ),
    Framework(
        name="strands",
        adapter="strands",
        plain="bench.frameworks_unmodified.with_strands_agents:Strands",
        package="strands-agents",
    ),
    Framework(
        name="autogen",
        adapter="autogen",
        plain="bench.frameworks_unmodified.with_autogen_agentchat:AutoGen",
        package="autogen-agentchat",
    ),
    Framework(
        name="llama-index",
        adapter="llama_index",
        plain="bench.frameworks_unmodified.with_llama_index:LlamaIndex",
        package="llama-index-core",
    ),
    Framework(
        name="crewai",
        adapter="crewai",
        plain="bench.frameworks_unmodified.with_crewai:CrewAI",
        package="crewai",
        is_blocking=True,
        has_cities=True,
    ),
)


WHERE_IT_GOES = {
    "openai-agents": (
        "Where a token's goes, by cProfile: seven tenths are `instrument()`, which lets a stop end the wait for each"
        " piece of the response; two tenths are the generator of the adapter around the events; the rest is the text"
        " that is kept as the partial and for the session."
    ),
    "strands": (
        "Where a token's goes, by cProfile: nearly half is the event loop, which takes four more turns, because the"
        " task that works hands each of the two events of a token over to the reader, who may refuse it; a sixth is the"
        " hand-over itself, a fifth the guard of the stream of the model, a sixth the text that is kept."
    ),
}


class Tool:
    """The world of a session whose tool does nothing."""

    def __init__(self, path: Path, framework: Framework) -> None:
        self.path = path
        self._framework = framework

    def tools(self) -> list[Callable[..., Any]]:
        def look_up_city(city: str) -> str:
            """Look up a price."""
            return f"9.30 to {city}"

        def look_up() -> str:
            """Look up a price."""
            return "9.30"

        async def look_up_async() -> str:
            """Look up a price."""
            return "9.30"

        chosen = (
            look_up_city if self._framework.has_cities else look_up if self._framework.is_blocking else look_up_async
        )
        chosen.__name__ = "look_up"
        return [chosen]


# What is asked, in a process without the adapter or with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Turns of one kind: what the model asks for in each, and how often the user writes."""

    calls: int = 0
    steps: int = 0
    tokens: int = 1
    turns: int = 1
    is_streamed: bool = False

    def script(self, framework: Framework) -> list[Reply]:
        """Return the answers of the model."""
        numbers = itertools.count()
        replies = []
        for _ in range(self.turns):
            for _ in range(self.steps):
                calls = [_call(next(numbers), framework) for _ in range(self.calls)]
                replies.append(Reply(tool_calls=calls))
            replies.append(Reply(["word "] * self.tokens, tool_calls=framework.final))
        return replies


def _call(number: int, framework: Framework) -> ToolCall:
    arguments = {"city": f"City {number}"} if framework.has_cities else {}
    return ToolCall(name="look_up", arguments=json.dumps(arguments), id=f"call-{number}")


ONE = Scene(calls=1, steps=1)
SCENES = {
    "turn": Scene(turns=TURNS),
    "one": ONE,
    "calls": Scene(calls=CALLS, steps=1),
    "steps": Scene(calls=1, steps=STEPS),
    "one token": Scene(is_streamed=True),
    "tokens": Scene(is_streamed=True, tokens=TOKENS),
}


class Worker:
    """Asks an agent, in its own process, and says how long that took."""

    def __init__(self, framework: Framework, url: str, *, has_adapter: bool) -> None:
        self._framework = framework
        self._url = url
        self._has_adapter = has_adapter
        self._class = _find(framework.stoppable if has_adapter and framework.stoppable else framework.plain)
        if has_adapter and not framework.stoppable:
            importlib.import_module(f"stoppable.adapters.{framework.adapter}").install()

    async def ask(self, scene: Scene) -> int:
        """Return the nanoseconds of CPU time of the turns of a scene."""
        with tempfile.TemporaryDirectory() as folder:
            world = Tool(Path(folder) / "effects", self._framework)
            chat = self._class(self._url, world, delegates=False)
            await chat.open()
            start = time.process_time_ns()
            for _ in range(scene.turns):
                await self._turn(chat.ask_streamed if scene.is_streamed else chat.ask)
            took = time.process_time_ns() - start
            await chat.close()
        return took

    async def _turn(self, ask: Callable[[str], Any]) -> None:
        if self._has_adapter:
            import stoppable  # noqa: PLC0415 - the other process has none of it

            await (await stoppable.spawn(ask, "How much?")).result()
        elif inspect.iscoroutinefunction(ask):
            await ask("How much?")
        else:
            await asyncio.to_thread(ask, "How much?")

    async def serve(self, orders: Any, answers: Any) -> None:
        """Do what the lines say."""
        while line := await asyncio.to_thread(orders.readline):
            print(await self.ask(Scene(**json.loads(line))), file=answers, flush=True)


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def work(framework: Framework, url: str, *, has_adapter: bool) -> None:
    """Be the process that is measured; what the framework prints is dropped."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    asyncio.run(Worker(framework, url, has_adapter=has_adapter).serve(sys.stdin, answers))


# What the two processes are told, and what comes of it


class Contender:
    """One of the two processes."""

    def __init__(self, framework: Framework, server: ModelServer, kind: str) -> None:
        self._framework, self._server = framework, server
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        environment = os.environ | {
            "CREWAI_DISABLE_TELEMETRY": "true",
            "CREWAI_TRACING_ENABLED": "false",
            "OTEL_SDK_DISABLED": "true",
        }
        self._process = subprocess.Popen(
            [framework.python, __file__, "--work", kind, "--url", server.url, framework.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def time(self, scene: Scene) -> int:
        """Return the nanoseconds of CPU time that a scene takes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before, script = len(self._server.requests), scene.script(self._framework)
        self._server.script(*script)
        words = {"calls": scene.calls, "steps": scene.steps, "tokens": scene.tokens, "turns": scene.turns}
        self._process.stdin.write(json.dumps(words | {"is_streamed": scene.is_streamed}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise RuntimeError(f"the process of {self._framework.name} has ended: {self._errors.read()[-2000:]}")
        asked = len(self._server.requests) - before
        assert asked == len(script), f"{self._framework.name}: {asked} model calls in place of {len(script)}"
        return int(answer)

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)
        self._errors.close()


@contextlib.contextmanager
def contenders(framework: Framework) -> Iterator[dict[str, Contender]]:
    """Start the two processes of a framework."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ModelServer())
        both = {}
        for kind in ("plain", "adapter"):
            both[kind] = Contender(framework, server, kind)
            stack.callback(both[kind].close)
        yield both


def costs(times: dict[str, int]) -> dict[str, float]:
    """Return the milliseconds of each part, from those of the scenes."""
    call = (times["calls"] - times["one"]) / (CALLS - 1)
    step = (times["steps"] - times["one"]) / (STEPS - 1)
    token = (times["tokens"] - times["one token"]) / (TOKENS - 1)
    parts = {"turn": times["turn"] / TURNS, "model call": step - call, "tool call": call, "streamed token": token}
    return {name: value / 1e6 for name, value in parts.items()}


def measure(framework: Framework) -> Section:
    """Measure one framework."""
    rounds: list[dict[str, dict[str, float]]] = []
    order, load = random.Random(0), dict(facts(()))["Load average before the run"]
    with contenders(framework) as both:
        for kind in both:  # the first time imports what is imported late
            for scene in SCENES.values():
                both[kind].time(scene)
        for _ in range(ROUNDS):
            times: dict[str, dict[str, int]] = {kind: {} for kind in both}
            for name, scene in SCENES.items():
                kinds = list(both)
                order.shuffle(kinds)
                for kind in kinds:
                    times[kind][name] = both[kind].time(scene)
            rounds.append({kind: costs(each) for kind, each in times.items()})
    rows = []
    for part in rounds[0]["plain"]:
        plain, with_it = (statistics.median(each[kind][part] for each in rounds) for kind in ("plain", "adapter"))
        ratio = statistics.median(each["adapter"][part] / each["plain"][part] for each in rounds)
        target = None if part == "turn" else LIMIT
        rows += [
            Row(name=f"{part}, plain (floor)", value=plain * 1000, unit="µs", ratio=1.0),
            Row(name=f"{part}, with the adapter", value=with_it * 1000, unit="µs", ratio=ratio, target=target),
        ]
    noted = dict(facts(()))
    note = f"{noted['Date']}, load average {load} before and {noted['Load average before the run']} after it"
    notes = [note, *([WHERE_IT_GOES[framework.name]] if framework.name in WHERE_IT_GOES else [])]
    return Section(title=_title(framework), rows=rows, notes=notes)


def _title(framework: Framework) -> str:
    ask = "from importlib.metadata import version; print(version({!r}))".format
    command = [framework.python, "-c", ask(framework.package)]
    version = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout.strip()
    return f"{framework.package} {version}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="frameworks; all if there are none")
    parser.add_argument("--work", choices=("plain", "adapter"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = [each for each in FRAMEWORKS if not options.names or each.name in options.names]
    if options.work:
        work(chosen[0], options.url, has_adapter=options.work == "adapter")
        return
    sections = []
    for framework in chosen:
        if framework.python.exists():
            sections.append(measure(framework))
            print(as_text(sections[-1]), flush=True)
        else:
            print(f"{framework.name} WAS NOT MEASURED: `make bench-adapters` makes its environment")
    print(f"\n{summary('adapters', sections)}")
    about = [fact for fact in facts(["stoppable"]) if fact[0] not in {"Load average before the run", "Date"}]
    page = as_markdown("What the adapters cost, measured", METHOD, about, sections, "")
    write(RESULTS, _merged(RESULTS.read_text() if RESULTS.exists() else "", page))


def _merged(old: str, new: str) -> str:
    """Return a page with the new tables, and those of the old page for frameworks that have none."""
    head, *tables = new.strip().split("\n## ")
    kept = {table.split()[0]: table for table in (*old.strip().split("\n## ")[1:], *tables)}
    order = [framework.package for framework in FRAMEWORKS if framework.package in kept]
    return "\n\n## ".join([head.strip(), *(kept[package].strip() for package in order)]) + "\n"


if __name__ == "__main__":
    main()

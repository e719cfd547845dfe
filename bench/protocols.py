"""What the cancel of each protocol's official client does: on a plain server of its SDK, and on `stoppable serve`.

The clients and the plain servers are in protocol_stops/, and so is the agent: both servers execute the same code. A run
of all protocols writes bench/results/protocols.md; names choose some, and only print their rows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
warnings.simplefilter("ignore")

import httpx  # noqa: E402
from bench.protocol_stops.agent import Work  # noqa: E402
from bench.protocol_stops.conversation import Opened, refused  # noqa: E402
from bench.protocol_stops.page import MODULES  # noqa: E402
from tests.adapters.langgraph.dev_server import dev_server  # noqa: E402
from tests.served import serving  # noqa: E402
from tests.surfaces.openai_api.agents import KINDS  # noqa: E402
from tests.waiting import until  # noqa: E402

from machine import facts  # noqa: E402
from servers import server  # noqa: E402
from table import write  # noqa: E402

RESULTS = ROOT / "bench/results/protocols.md"
WINDOW_SECONDS = 3.0
SETTLE_SECONDS = 0.5
"""The time that a cancel without an answer has to arrive."""
_MOST_SECONDS = 180.0
_AGENT = "bench.protocol_stops.agent:research"
_LANGGRAPH = ROOT / ".venv-langgraph-server/bin/python"
_PACKAGES = ("a2a-sdk", "mcp", "fastmcp-tasks", "openai", "ag-ui-protocol", "agent-client-protocol", "langgraph-sdk")
_NPM = ("@ag-ui/client", "ai")

Served = AbstractContextManager[str]


# The servers: each yields its address, or the command by which a client starts it.


def plain(name: str) -> Served:
    """Serve the agent with the SDK of a protocol alone."""
    return _serving_plain((sys.executable, "-m", f"bench.protocol_stops.{name}"))


@contextlib.contextmanager
def _serving_plain(command: tuple[str, ...]) -> Iterator[str]:
    with server(command) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def langgraph_dev() -> Iterator[str]:
    """Serve the agent as a graph on LangGraph's own server."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "my.py").write_text("from bench.protocol_stops.graph import graph\n")
        known = {"dependencies": ["."], "graphs": {"research": "./my.py:graph"}}
        (folder / "langgraph.json").write_text(json.dumps(known))
        with dev_server(folder, _LANGGRAPH) as http:
            yield str(http.base_url)


@contextlib.contextmanager
def started_by_client(*command: str) -> Iterator[str]:
    yield json.dumps([sys.executable, "-m", *command])


def ours() -> AbstractContextManager[tuple[object, str]]:
    """Serve the agent with `stoppable serve`, over all protocols at once."""
    return serving(_AGENT, "--store", "memory://", folder=ROOT)


# The measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What one cancel did."""

    told: str
    seconds: float | None
    """From the cancel to the reported end; None if nobody reports one."""
    marks: dict[str, int]
    left: tuple[str, ...]
    kept: bool | None
    """None if the protocol has no way to ask."""
    next_turn: str

    @property
    def goes_on(self) -> bool:
        return any(self.marks.values()) or bool(self.left)

    @property
    def goes_well(self) -> bool:
        return self.next_turn.endswith("heard hello")


async def measure(opened: Callable[[str], Opened], address: str, *, is_ours: bool) -> Stop:
    """Cancel the agent in the middle of its work, and see what comes after."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Work(folder)
        try:
            async with asyncio.timeout(_MOST_SECONDS), opened(address) as conversation:
                await conversation.begin(folder)
                await until(lambda: work.have_begun() and work.has("word", "said"))
                asked = time.time()
                told = await conversation.cancel()
                heard = time.time()
                end, words = heard if told.is_end else None, told.words
                if not told.is_end and (status := await conversation.end()):
                    end, words = time.time(), f"{words}; when it asks: `{status}`"
                elif not told.is_end and is_ours:
                    await ended(address)
                    end = time.time()
                begin = end or heard + SETTLE_SECONDS
                await asyncio.sleep(begin + WINDOW_SECONDS - time.time())
                marks, left = work.between(begin, begin + WINDOW_SECONDS), tuple(work.still_there())
                next_turn = await refused(conversation.ask("hello"))
                text = await conversation.kept()
        finally:
            end_command(work.folder / "pid")
    return Stop(
        told=words,
        seconds=end and end - asked,
        marks=marks,
        left=left,
        kept=None if text is None else "word0" in text,
        next_turn=next_turn,
    )


async def ended(address: str) -> None:
    """Wait for the end of the newest run, which a client that has left is not told."""
    async with httpx.AsyncClient(base_url="/".join(address.split("/")[:3])) as http:
        while True:
            [run] = (await http.get("/runs", params={"limit": 1})).json()["runs"]
            if run["endedAt"] is not None:
                return
            await asyncio.sleep(0.01)


def end_command(path: Path) -> None:
    """End the command, if nothing else has."""
    with contextlib.suppress(OSError):
        os.kill(int(path.read_text()), signal.SIGKILL)


# The protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A protocol, its client's own cancel, and who serves it."""

    title: str
    cancel: str
    module: str
    """Of the client, in protocol_stops/."""
    options: dict[str, str] = field(default_factory=dict)
    server: str
    """The plain one, or why there is none."""
    plain: Callable[[], Served] | None = None
    path: str = ""
    """Where `stoppable serve` has it."""
    command: tuple[str, ...] = ()
    """The command of stoppable that a client starts itself, if it does."""

    def opened(self, address: str) -> Opened:
        """Open a conversation; a client is imported only if it is needed."""
        return importlib.import_module(f"bench.protocol_stops.{self.module}").opened(address, **self.options)


def plain_mcp() -> Served:
    return plain("with_mcp")


NO_OPENAI = "there is no official server"
NO_VERCEL = "the server half of the SDK is JavaScript, the agent is Python"
PROTOCOLS = {
    "a2a": Protocol(
        title="A2A",
        cancel="`cancel_task` of a2a-sdk",
        module="with_a2a",
        server="a2a-sdk",
        plain=lambda: plain("with_a2a"),
        path="/a2a/research",
    ),
    "mcp": Protocol(
        title="MCP 2026-07-28, HTTP",
        cancel="mcp, the task of the call is cancelled",
        module="with_mcp",
        server="mcp",
        plain=plain_mcp,
    ),
    "mcp-2025": Protocol(
        title="MCP 2025-11-25, HTTP",
        cancel="the same",
        module="with_mcp",
        options={"mode": "legacy"},
        server="mcp",
        plain=plain_mcp,
    ),
    "mcp-stdio": Protocol(
        title="MCP, stdio",
        cancel="the same",
        module="with_mcp_stdio",
        server="mcp",
        plain=lambda: started_by_client("bench.protocol_stops.with_mcp", "stdio"),
        command=("stoppable", "mcp", _AGENT),
    ),
    "mcp-tasks": Protocol(
        title="MCP tasks, HTTP",
        cancel="`ToolTask.cancel()` of fastmcp-tasks",
        module="with_mcp_tasks",
        server="fastmcp-tasks",
        plain=lambda: plain("with_mcp_tasks"),
    ),
    "openai": Protocol(
        title="OpenAI responses",
        cancel="`responses.cancel` of openai",
        module="with_openai",
        options={"api": "responses"},
        server=NO_OPENAI,
    ),
    "openai-chat": Protocol(
        title="OpenAI chat completions",
        cancel="openai, the stream is closed",
        module="with_openai",
        options={"api": "chat"},
        server=NO_OPENAI,
    ),
    "ag-ui": Protocol(
        title="AG-UI",
        cancel="`abortRun()` of @ag-ui/client",
        module="with_ag_ui",
        server="ag-ui-protocol",
        plain=lambda: plain("with_ag_ui"),
    ),
    "vercel": Protocol(
        title="Vercel AI UI stream",
        cancel="`POST …/stop` beside ai",
        module="with_vercel_ai",
        options={"how": "stop"},
        server=NO_VERCEL,
    ),
    "vercel-leave": Protocol(
        title="Vercel AI UI stream",
        cancel="`chat.stop()` of ai",
        module="with_vercel_ai",
        options={"how": "leave"},
        server=NO_VERCEL,
    ),
    "acp": Protocol(
        title="ACP",
        cancel="`session/cancel` of agent-client-protocol",
        module="with_acp",
        server="agent-client-protocol",
        plain=lambda: started_by_client("bench.protocol_stops.with_acp"),
        command=("stoppable", "acp", _AGENT),
    ),
    "langgraph": Protocol(
        title="LangGraph API",
        cancel="`runs.cancel(wait=True)` of langgraph-sdk",
        module="with_langgraph",
        server="langgraph dev",
        plain=langgraph_dev,
        path="/lg",
    ),
}

Pair = tuple[Stop | str, Stop | str]
"""What happened on the plain server and on ours; a text says why there is nothing."""


async def stops_of(protocol: Protocol, url: str) -> Pair:
    """Cancel on the plain server, if there is one, and on ours."""
    before: Stop | str = protocol.server
    if protocol.plain is not None:
        before = await measured(protocol, protocol.plain(), is_ours=False)
    served = started_by_client(*protocol.command) if protocol.command else contextlib.nullcontext(url + protocol.path)
    return before, await measured(protocol, served, is_ours=True)


async def measured(protocol: Protocol, served: Served, *, is_ours: bool) -> Stop | str:
    try:
        with served as address:
            return await measure(protocol.opened, address, is_ours=is_ours)
    except Exception as error:
        traceback.print_exc()
        return f"could not be measured: {type(error).__name__}"


# The page


def rows(protocol: Protocol, pair: Pair) -> Iterator[str]:
    before, after = pair
    yield row(f"**{protocol.title}**: {protocol.cancel}", protocol.server if protocol.plain else "none", *cells(before))
    yield row("", "stoppable", *cells(after))


def cells(stop: Stop | str) -> Iterator[str]:
    if isinstance(stop, str):
        yield from (stop, *[""] * 5)
        return
    yield stop.told
    yield "**never**" if stop.seconds is None else f"{stop.seconds:.2f} s"
    yield bold(" ".join(str(stop.marks[kind]) for kind in KINDS), any(stop.marks.values()))
    yield bold(", ".join(stop.left) or "nothing", bool(stop.left))
    yield "–" if stop.kept is None else bold("yes" if stop.kept else "no", not stop.kept)
    yield "works" if stop.goes_well else f"**{stop.next_turn}**"


def bold(text: str, is_wrong: bool) -> str:
    return f"**{text}**" if is_wrong else text


def row(*texts: str) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


METHOD = (
    "Written by `make bench-protocols`. One agent works in four ways at once: in an await, in a thread, in a command"
    " and in a sub-agent. Each leaves a mark in a file ten times a second, and the agent says a word four times a"
    " second. The unmodified client of each protocol cancels it, once on a plain server that is built with the SDK of"
    " that protocol, and once on `stoppable serve`, `stoppable mcp` or `stoppable acp`. Both execute the same code. Its"
    " thread calls `stoppable.check()` between two marks, which does nothing on a plain server. One round of each."
    " Wrong is bold."
)
COLUMNS = (
    (
        "**the client is told**: by the answer to its cancel. Where the protocol has none, it is what the client finds"
        " out when it asks the server; `nothing` means that it cannot."
    ),
    (
        "**end after**: from the cancel to the end that is reported. A client that leaves is told nothing, so on"
        " stoppable it is when `GET /runs` has the end. A stop gives what is in flight two seconds, here the command."
    ),
    (
        f"**marks**: in the {WINDOW_SECONDS:g} seconds after the reported end, or from {SETTLE_SECONDS:g} seconds after"
        " the cancel on if no end is reported: await, thread, command, sub-agent."
    ),
    "**left**: what still works at the end of that time.",
    (
        "**kept**: whether the server has what the agent had said, when the client asks for it or goes on. A plain"
        " server keeps what its author keeps, here nothing beyond what the SDK does. Nothing can be asked of a chat"
        " completion later. In Vercel's SDK the page itself keeps it."
    ),
)


def reading(pairs: Iterable[Pair]) -> Iterator[str]:
    """Count what the table says."""
    before, after = zip(*pairs, strict=True)
    for where, stops in (("On the plain servers", before), ("On stoppable", after)):
        found = [stop for stop in stops if isinstance(stop, Stop)]
        wrong = [stop for stop in found if stop.goes_on]
        reported = [stop.seconds for stop in found if stop.seconds is not None]
        kept = [stop.kept for stop in found if stop.kept is not None]
        claimed = sum(stop.seconds is not None for stop in wrong)
        yield (
            f"- {where} something goes on after {len(wrong)} of {len(found)} cancels"
            f"{f', and {claimed} of those were reported as ended' if wrong else ''}. An end is reported after"
            f" {len(reported)}, at the latest after {max(reported, default=0):.1f} s. What the agent had said is kept"
            f" after {sum(kept)} of {len(kept)}, and the next turn works after {sum(stop.goes_well for stop in found)}."
        )


def npm_versions() -> Iterable[str]:
    for name in _NPM:
        package = json.loads((MODULES / name / "package.json").read_text())
        yield f"{name} {package['version']}"


def langgraph_versions() -> str:
    names = ("langgraph-api",)
    code = f"from importlib.metadata import version as v; print(', '.join(f'{{n}} {{v(n)}}' for n in {names!r}))"
    return subprocess.run([_LANGGRAPH, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def page(pairs: dict[str, Pair], machine: Iterable[tuple[str, str]]) -> str:
    python = ", ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES)
    header = row("client's cancel", "server", "the client is told", "end after", "marks", "left", "kept", "next turn")
    lines = ["# The cancel of each protocol, on the plain SDK and on stoppable", "", METHOD, ""]
    lines += [f"- {name}: {value}" for name, value in machine if name != "Packages"]
    lines += [f"- Packages: {python}, {langgraph_versions()}, {', '.join(npm_versions())}", ""]
    lines += [*(f"- {column}" for column in COLUMNS), "", header, "|---" * 8 + "|"]
    lines += [line for name, pair in pairs.items() for line in rows(PROTOCOLS[name], pair)]
    lines += ["", "## What it says", "", *reading(pairs.values())]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROTOCOLS)}")
    chosen = parser.parse_args().names
    logging.disable(logging.INFO)
    os.chdir(ROOT)  # modules of this folder are started by name
    pairs: dict[str, Pair] = {}
    machine = facts([])
    with ours() as (_, url):
        for name in chosen or PROTOCOLS:
            pairs[name] = asyncio.run(stops_of(PROTOCOLS[name], url))
            print(*rows(PROTOCOLS[name], pairs[name]), sep="\n", flush=True)
    if not chosen:
        write(RESULTS, page(pairs, machine))


if __name__ == "__main__":
    sys.exit(main())

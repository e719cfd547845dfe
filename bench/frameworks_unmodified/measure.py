"""Stops one framework's agent in every scene, and writes what happened as lines of JSON.

Executed by bench/frameworks.py in the environment of the framework: `measure.py MODULE OUTPUT [SCENE …]`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import platform
import re
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before a framework is imported: nothing is traced, counted or downloaded.
os.environ.update(
    {
        "ANONYMIZED_TELEMETRY": "false",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_TRACING_ENABLED": "false",
        "HF_HUB_OFFLINE": "1",
        "OPENAI_API_KEY": "none",
        "OTEL_SDK_DISABLED": "true",
    }
)
warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from tests.adapters.scenarios.chat import Chat  # noqa: E402
from tests.adapters.scenarios.history import is_valid, shape  # noqa: E402

import stoppable  # noqa: E402
from frameworks_unmodified.log import Log  # noqa: E402
from frameworks_unmodified.scenes import SCENES, Scene  # noqa: E402
from stoppable.testing import ModelServer  # noqa: E402

NEXT = "Are you still there?"
_START_SECONDS, _END_SECONDS = 30.0, 40.0
_ANSWER_SECONDS, _EFFECT_SECONDS = 0.1, 1.0


@dataclass(slots=True, kw_only=True)
class Cell:
    """What one stop did."""

    scene: str
    mode: str
    seconds: float | None = None
    """From the stop to the end; None if there was no end."""
    status: str = ""
    model_calls_after: int = 0
    """Begun after the stop; tools too."""
    tools_after: int = 0
    effects_after: int = 0
    """After the end."""
    runs: list[str]
    """What the receipt must name."""
    in_flight: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    unguarded: list[str] = field(default_factory=list)
    blind: bool = False
    still_answering: bool = False
    """Whether the model server still answers shortly after the end."""
    history: str = ""
    """The messages that the model gets in the next turn of the user."""
    refused: bool = False
    """Whether a provider would refuse them."""
    failure: str = ""
    """Why the cell could not be measured."""


async def reach(scene: Scene, server: ModelServer, log: Log, handle: Any) -> None:
    async with asyncio.timeout(_START_SECONDS):
        while not scene.is_reached(server, log):
            if handle.run.outcome is not None:
                raise RuntimeError(f"ended before the stop: {handle.run.outcome}")
            await asyncio.sleep(0.005)


async def stop(cell: Cell, server: ModelServer, log: Log, handle: Any) -> None:
    requests, tools, start = len(server.requests), log.count("begin"), time.perf_counter()
    receipt = await handle.stop(cell.mode)
    cell.in_flight = [plain(label) for label in receipt.in_flight]
    try:
        async with asyncio.timeout(_END_SECONDS):
            outcome = await handle.outcome()
    except TimeoutError:
        cell.status = f"no end in {_END_SECONDS:g} s"
    else:
        cell.seconds, cell.status = time.perf_counter() - start, str(outcome.status)
    effects = log.count("effect")
    await asyncio.sleep(_ANSWER_SECONDS)
    cell.still_answering = any(each.ending is None and each.requests > each.answers for each in server.connections)
    await asyncio.sleep(_EFFECT_SECONDS)
    cell.effects_after = log.count("effect") - effects
    cell.model_calls_after = len(server.requests) - requests
    cell.tools_after = log.count("begin") - tools
    final = handle.run.receipt
    cell.nodes = [f"{plain(f'{node.kind}:{node.name}')} {node.fate}" for node in final.entries if node.kind != "run"]
    cell.unguarded, cell.blind = list(map(plain, final.unguarded)), final.blind


def plain(label: str) -> str:
    return re.sub(r"127\.0\.0\.1:\d+", "model", label)


async def ask_again(cell: Cell, chat: Chat, server: ModelServer) -> None:
    """Begin the next turn of the user, and see what the model would get."""
    handle = await stoppable.spawn(chat.ask, NEXT)
    messages: list[dict[str, Any]] | None = None
    try:
        async with asyncio.timeout(_START_SECONDS):
            while messages is None and handle.run.outcome is None:
                await asyncio.sleep(0.005)
                messages = next((each.messages for each in server.requests if NEXT in json.dumps(each.body)), None)
    except TimeoutError:
        pass
    if messages is None:
        cell.history, cell.refused = f"no request: {handle.run.outcome or 'nothing happened'}", True
    else:
        cell.history, cell.refused = shape(messages), not is_valid(messages)
    await handle.stop("immediate")
    async with asyncio.timeout(_END_SECONDS):
        await handle.outcome()


async def measure(kind: type[Chat], scene: Scene, mode: str, log: Log) -> Cell:
    cell = Cell(scene=scene.name, mode=mode, runs=list(scene.runs))
    with ModelServer(*scene.script(kind)) as server:
        chat = kind(server.url, log, delegates=scene.delegates)
        await chat.open()
        try:
            handle = await stoppable.spawn(chat.ask_streamed if scene.is_streamed else chat.ask, "Book a trip, please.")
            await reach(scene, server, log, handle)
            await stop(cell, server, log, handle)
            await ask_again(cell, chat, server)
        except Exception as error:
            cell.failure = f"{type(error).__name__}: {error}"[:300]
        finally:
            await chat.close()
    return cell


async def main(module: str, output: Path, wanted: list[str]) -> None:
    stoppable.instrument()
    kind = next(
        each
        for each in vars(importlib.import_module(f"frameworks_unmodified.{module}")).values()
        if isinstance(each, type) and issubclass(each, Chat) and each is not Chat
    )
    versions = ", ".join(f"{package} {version(package)}" for package in kind.PACKAGES)
    with output.open("w") as file, tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"versions": versions, "python": platform.python_version()}), file=file, flush=True)
        for scene in SCENES:
            if (wanted and scene.name not in wanted) or (scene.delegates and kind.HELPER is None):
                continue
            for mode in ("graceful", "immediate"):
                log = Log(Path(folder) / f"{scene.name}-{mode}")
                cell = await measure(kind, scene, mode, log)
                print(json.dumps(asdict(cell)), file=file, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))

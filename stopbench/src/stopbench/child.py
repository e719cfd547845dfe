"""The process of one subject: it starts the agent, presses Stop when it is told to, and says when the turn has ended.

Executed by its path, so that the environment of the subject needs nothing of this package: `child.py SOCKET FILE
VARIANT`. It imports the framework once; each line of JSON on the socket makes it fork a process for one trial, which
connects to a socket of its own. The commands and reports there are lines of JSON too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Before a framework is imported: nothing is traced, counted or downloaded.
os.environ.update(
    {
        "ANONYMIZED_TELEMETRY": "false",
        "HF_HUB_OFFLINE": "1",
        "LANGSMITH_TRACING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": "none",
        "OPENBLAS_NUM_THREADS": "1",
        "OTEL_SDK_DISABLED": "true",
    }
)
warnings.simplefilter("ignore")


def load(name: str, file: Path, folders: list[str] | None = None) -> Any:
    """Import a file as a module."""
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class PlainTurns:
    """Turns of an agent, stopped by the framework's own cancel."""

    def __init__(self, subject: Any) -> None:
        self._subject = subject
        self._task: asyncio.Task[Any] | None = None

    async def start(self, ask: Callable[[str], Any], text: str) -> None:
        async def turn() -> Any:
            if inspect.iscoroutinefunction(ask):
                return await ask(text)
            return await asyncio.to_thread(ask, text)

        self._task = asyncio.create_task(turn())

    async def stop(self) -> None:
        result = self._subject.cancel(self._task)
        if inspect.isawaitable(result):
            await result

    async def end(self) -> tuple[str, str]:
        """Wait for the end of the turn, and return the state that is reported, and an error."""
        assert self._task is not None
        await asyncio.wait({self._task})
        error = asyncio.CancelledError() if self._task.cancelled() else self._task.exception()
        result = None if error is not None else self._task.result()
        return self._subject.state(result, error), "" if error is None else f"{type(error).__name__}: {error}"


class StoppableTurns:
    """Turns of an agent that are runs of stoppable."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._handle: Any = None

    async def start(self, ask: Callable[[str], Any], text: str) -> None:
        import stoppable

        self._handle = await stoppable.spawn(ask, text)

    async def stop(self) -> None:
        await self._handle.stop(self._mode)

    async def end(self) -> tuple[str, str]:
        outcome = await self._handle.outcome()
        return str(outcome.status), "" if outcome.error is None else f"{outcome.error!r}"


class Child:
    """Carries out the commands."""

    def __init__(self, subject: Any, turns: PlainTurns | StoppableTurns, writer: asyncio.StreamWriter) -> None:
        self._subject = subject
        self._turns = turns
        self._writer = writer
        self._background: set[asyncio.Task[None]] = set()

    def report(self, event: str, **values: Any) -> None:
        self._writer.write(json.dumps({"event": event, "at": time.monotonic(), **values}).encode() + b"\n")

    async def carry_out(self, command: dict[str, Any]) -> None:
        match command["do"]:
            case "ask":
                ask = self._subject.ask_streamed if command["streamed"] else self._subject.ask
                await self._turns.start(ask, command["text"])
                if command["stop"]:
                    await self._stop()
                self._in_background(self._report_end())
            case "stop":
                self._in_background(self._stop())

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _stop(self) -> None:
        error = ""
        self.report("stop called")
        try:
            await self._turns.stop()
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        self.report("stop returned", error=error)

    async def _report_end(self) -> None:
        state, error = await self._turns.end()
        knows_stoppable = "stoppable" in sys.modules
        self.report("ended", state=state, error=error[:300], knows_stoppable=knows_stoppable)


async def serve(kind: Any, variant: str, task: dict[str, Any]) -> None:
    """Make the agent, and carry out commands until the socket is closed."""
    from stopbench.tools import make_tools

    tools = make_tools(Path(task["log"]))
    subject = kind(task["url"], tools, delegates=task["delegates"], with_stoppable=variant != "plain")
    subject.log = Path(task["log"])
    turns = PlainTurns(subject)
    if variant != "plain":
        turns = StoppableTurns("immediate" if variant.endswith("immediate") else "graceful")
    reader, writer = await asyncio.open_unix_connection(task["socket"])
    child = Child(subject, turns, writer)
    await subject.open()
    names = [re.split(r"[^\w.-]", package)[0] for package in kind.PACKAGES]
    names += [] if variant == "plain" else ["stoppable"]
    child.report("ready", versions={name: version(name) for name in names})
    while line := await reader.readline():
        await child.carry_out(json.loads(line))


def fork(kind: Any, variant: str, task: dict[str, Any]) -> int:
    """Start a process for one trial: what it needs has been imported."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        noise = os.open(task["noise"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(noise, 1)
        os.dup2(noise, 2)
        try:
            asyncio.run(serve(kind, variant, task))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    return pid


def main(descriptor: int, file: Path, variant: str) -> None:
    """Import the framework once, and fork a process for each trial."""
    from stopbench.subject import find_subject

    control = socket.socket(fileno=descriptor)
    kind = find_subject(load("stopbench_subject", file))
    with contextlib.suppress(ImportError):
        importlib.import_module("openai.resources.chat.completions")  # else each trial imports it
    if variant != "plain":
        import stoppable

        stoppable.instrument()
        kind.prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    gc.freeze()
    is_alone = len(list(Path("/proc/self/task").iterdir())) == 1
    with control, control.makefile("rw") as lines:
        print(json.dumps({"is_alone": is_alone}), file=lines, flush=True)
        for line in lines:
            print(json.dumps({"pid": fork(kind, variant, json.loads(line))}), file=lines, flush=True)


if __name__ == "__main__":
    package = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != package]
    load("stopbench", package / "__init__.py", [str(package)])
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

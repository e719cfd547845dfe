"""What an interrupt of OpenHands does, case by case: plain, and with stoppable beside it, on the real SDK.

Tools work until they are released, or for the seconds that a case says. Each half runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT)  # in place of this folder, where `import openhands` would find this file
warnings.simplefilter("ignore")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("LOG_LEVEL", "CRITICAL")
os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")

from tests.adapters.openhands import test_commands as terminals  # noqa: E402
from tests.adapters.openhands import test_sub_agents as subs  # noqa: E402
from tests.adapters.openhands import test_tokens_and_init as init  # noqa: E402
from tests.adapters.openhands import world as w  # noqa: E402

from stoppable.adapters.openhands import supervise, tool_calls  # noqa: E402

IS_PLAIN = "--plain" in sys.argv
SECONDS = 2.0
CASES = {}


def case(title):
    def keep(function):
        CASES[title] = function
        return function

    return keep


def supervised(conversation):
    return conversation if IS_PLAIN else supervise(conversation)


def after(seconds, *names):
    timer = threading.Timer(seconds, w.world.release, names)
    timer.daemon = True
    timer.start()


@contextlib.asynccontextmanager
async def running(folder, *script, wait="enter a", **more):
    """Run a conversation until something of it is under way."""
    conversation = supervised(w.converse(folder, *script, **more))
    task = asyncio.create_task(conversation.arun())
    await w.world.saw(wait)
    yield conversation, task
    w.world.release_all()
    await asyncio.wait([task], timeout=20)


@case("a tool that does not obey, for 2 s")
async def uncooperative(folder):
    async with running(folder, w.asks(w.hold("a")), w.says("done")) as (conversation, task):
        after(SECONDS, "a")
        start = time.perf_counter()
        conversation.interrupt()
        while w.status(conversation) != "paused":
            await asyncio.sleep(0.001)
        paused = time.perf_counter() - start
        await task
        alive = "finish a" not in w.world.notes
        return f"paused after {paused:.2f} s; arun() back {'while the tool works on' if alive else 'when it is dead'}"


@case("what its thread sees of the next run")
async def late(folder):
    async with running(folder, w.asks(w.hold("a")), w.asks(w.hold("b")), w.says("done")) as (conversation, task):
        conversation.interrupt()
        await asyncio.wait([task], timeout=20)
        conversation.send_message("again")
        second = asyncio.create_task(conversation.arun())
        await w.world.saw("enter b")
        before = len(w.world.tokens["a"])
        await asyncio.sleep(0.2)
        seen = set(w.world.tokens["a"][before:])
        w.world.release_all()
        await second
        return "cancelled" if seen == {True} else "not cancelled: the token of the next run"


@case("three parallel tools, for 2 s")
async def parallel(folder):
    holds = [w.hold(name) for name in "abc"]
    async with running(folder, w.asks(*holds), w.says("done"), at_once=3, wait="enter c") as (conversation, task):
        after(SECONDS, "a", "b", "c")
        stall, last = 0.0, time.perf_counter()
        conversation.interrupt()
        while not task.done():
            await asyncio.sleep(0.005)
            stall, last = max(stall, time.perf_counter() - last), time.perf_counter()
        return f"the loop stalls for {stall:.2f} s"


@case("sync `run()` in a tool, for 2 s")
async def blocking(folder):
    conversation = supervised(w.converse(folder, w.asks(w.hold("a")), w.says("done")))
    thread = threading.Thread(target=conversation.run)
    thread.start()
    await w.world.saw("enter a")
    after(SECONDS, "a")
    start = time.perf_counter()
    conversation.interrupt()
    took = time.perf_counter() - start
    thread.join(20)
    return f"interrupt() blocks for {took:.3f} s"


@case("`asyncio.timeout` and `task.cancel()`")
async def outside(folder):
    said = []
    conversation = supervised(w.converse(folder, w.asks(w.hold("a", obeys=True)), w.says("done")))
    try:
        async with asyncio.timeout(0.5):
            await conversation.arun()
        said.append("no TimeoutError")
    except TimeoutError:
        said.append("TimeoutError")
    w.world.release_all()
    w.world.reset()
    async with running(folder, w.asks(w.hold("a", obeys=True)), w.says("done")) as (_, task):
        task.cancel()
        await asyncio.wait([task], timeout=20)
        said.append(f"cancelled() is {task.cancelled()}")
    return "; ".join(said)


async def sub_agents(folder, way):
    tool, script = subs.WAYS[way]
    w.world.release(*(f"more {number}" for number in range(4)))
    async with running(folder, *script, w.says("done"), tools=(tool,), wait="enter child") as (conversation, task):
        conversation.interrupt()
        await asyncio.sleep(0.2)
        w.world.release("child")
        await asyncio.wait([task], timeout=20)
        await asyncio.sleep(1.0)
        return f"{sum(note.startswith('enter more') for note in w.world.notes)} more tool calls of the sub-agent"


@case("a sub-agent by the task tool")
async def task_tool(folder):
    return await sub_agents(folder, "task")


@case("sub-agents on bare threads")
async def bare_threads(folder):
    return await sub_agents(folder, "bare threads")


@case("`interrupt()` before `arun()`")
async def before_the_run(folder):
    conversation = supervised(w.converse(folder, w.asks(w.hold("a")), w.says("done")))
    w.world.release("a")
    conversation.interrupt()
    await conversation.arun()
    return "the tool runs" if "enter a" in w.world.notes else "nothing runs"


@case("`interrupt()` from the last event")
async def last_event(folder):

    def on_event(event):
        if type(event).__name__ == "MessageEvent" and event.source == "agent":
            conversation.interrupt()

    conversation = supervised(w.converse(folder, w.says("done"), callbacks=[on_event]))

    async def caller():
        await conversation.arun()
        await asyncio.sleep(0.1)

    task = asyncio.create_task(caller())
    await asyncio.wait([task])
    return "CancelledError in the caller's next await" if task.cancelled() else "the caller goes on"


@case("`interrupt()` while the agent is initialized")
async def initialized(folder):
    agent = init.Agent(llm=w.Scripted.from_messages([w.says("done")]), tools=[init.Tool(name="slow")])
    conversation = supervised(init.Conversation(agent=agent, workspace=folder, visualizer=None))
    task = asyncio.create_task(conversation.arun())
    await w.world.saw("enter init")
    conversation.interrupt()
    after(0.3, "init")
    await asyncio.wait([task], timeout=20)
    how = "CancelledError escapes" if task.cancelled() else "returns"
    return f"{how}; {w.status(conversation)}, {w.interrupts(conversation)} InterruptEvent"


async def commands(folder, *texts):
    script = [w.asks(terminals.command(text)) for text in texts]
    conversation = supervised(w.converse(folder, *script, tools=[("terminal", {"terminal_type": "subprocess"})]))
    task = asyncio.create_task(conversation.arun())
    pids = {name: await terminals.written(Path(folder) / name) for name in ("command", "job")[: len(texts)]}
    conversation.interrupt()
    await asyncio.wait([task], timeout=20)
    await asyncio.sleep(0.5)
    alive = [name for name, pid in pids.items() if terminals.alive(pid)]
    for name in alive:
        os.kill(pids[name], 9)
    return f"alive: {' and '.join(alive)}" if alive else "dead"


@case("`sleep 300` in a terminal")
async def sleeping(folder):
    return await commands(folder, f"sh -c 'echo $$ > {folder}/command; exec sleep 300'")


@case("a command that ignores Ctrl-C, and a background job")
async def stubborn(folder):
    stubborn = f"sh -c 'trap \"\" INT; echo $$ > {folder}/command; while :; do sleep 1; done'"
    return await commands(folder, f"sleep 300 & echo $! > {folder}/job", stubborn)


@case("stop one of two tool calls")
async def one_of_two(folder):
    if IS_PLAIN:
        return "impossible"
    calls = w.asks(w.hold("a", "one", obeys=True), w.hold("b", "two"))
    async with running(folder, calls, w.says("done"), at_once=2, wait="enter b") as (conversation, task):
        tool_calls(conversation)["one"].stop("immediate", "too slow")
        w.world.release("b")
        await task
        return f"the agent goes on: {w.status(conversation)}"


def measure():
    """Print what each case gives."""
    for title, function in CASES.items():
        w.world.reset()
        with tempfile.TemporaryDirectory() as folder:
            try:
                # asyncio.run() would wait for the threads that plain OpenHands leaves behind.
                said = asyncio.new_event_loop().run_until_complete(function(folder))
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
        w.world.release_all()
        print(json.dumps([title, said]), flush=True)
    os._exit(0)  # threads of plain OpenHands may be left


def half(*options):
    command = [sys.executable, "-W", "ignore", __file__, "--measure", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def main() -> None:
    if "--measure" in sys.argv:
        measure()
    plain, ours = half("--plain"), half()
    lines = [f"| case | openhands-sdk {version('openhands-sdk')} | with stoppable |", "|---|---|---|"]
    lines += [f"| {title} | {plain[title]} | {ours[title]} |" for title in CASES]
    note = "By `bench/openhands.py`, one round of each case."
    (ROOT / "bench/results/openhands.md").write_text("\n".join(["# Interrupts of OpenHands", "", note, "", *lines, ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()

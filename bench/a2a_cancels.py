"""Cancels on a server of the A2A SDK, plain beside stoppable: what was said, and what was true.

Each case is performed on a real server with the SDK's own client. An effect is counted each 20 ms for as long as the
executor works; those after the answer to the cancel are what nobody should see. Writes bench/results/a2a.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

os.environ["OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"] = "false"  # tracing is an option, and costs
ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT)
warnings.simplefilter("ignore")

from a2a.server.cluster.database_task_store import VersionedDatabaseTaskStore  # noqa: E402
from a2a.server.context import ServerCallContext  # noqa: E402
from a2a.server.tasks import DatabaseTaskStore  # noqa: E402
from a2a.types import CancelTaskRequest  # noqa: E402
from tests.adapters.a2a.executors import SaysCanceled, Scripted  # noqa: E402
from tests.adapters.a2a.races import RACES, Races, race  # noqa: E402
from tests.adapters.a2a.serving import Stream, message, served, state_of  # noqa: E402
from tests.adapters.a2a.test_remote import calling  # noqa: E402
from tests.adapters.a2a.test_replicas import process_in, replicas, task_store  # noqa: E402

import stoppable  # noqa: E402

STEP_SECONDS, STEPS = 0.02, 150
ANSWER_SECONDS = 8.0
STREAM_SECONDS = 2.0  # a stream that is open for so long after the answer stays open
ROUNDS, CLIENTS = 20, 8
MANY, EVENTS = 200, 2000
CPU_ROW = f"CPU of a cancel, without HTTP, of {MANY} tasks"
WHERE_IT_GOES = (
    "Where the CPU of a cancel goes, by cProfile: at the end of its run, all tasks of the process are looked through\n"
    "for what the run has left behind (three tenths, more with more tasks), and the stop goes through the supervisor\n"
    "and its store (an eighth). The rest is spread over the run's own task, its receipt, and the wake-ups of asyncio\n"
    "and the SDK's queues, of which the plain SDK has fewer."
)


class Works(Scripted):
    """Works in steps of 20 ms, three seconds in all."""

    async def work(self, _context, _updater):
        for _ in range(STEPS):
            await self.step()
            self.effects += 1

    async def step(self):
        await asyncio.sleep(STEP_SECONDS)


class Swallows(Works):
    async def step(self):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(STEP_SECONDS)


class InThread(Works):
    async def work(self, _context, _updater):
        await asyncio.to_thread(self.block)

    def block(self):
        for _ in range(STEPS):
            time.sleep(STEP_SECONDS)
            self.effects += 1


class Bounded(Works):
    async def step(self):
        async with stoppable.boundary("tool", "step"):
            await asyncio.sleep(STEP_SECONDS)


class EmptyCancel(Works):
    async def cancel(self, _context, _queue):
        pass


class HangingCancel(Works):
    def __init__(self):
        super().__init__()
        self.let_go = asyncio.Event()

    async def cancel(self, _context, _queue):
        await self.let_go.wait()


class RaisingCancel(Works):
    async def cancel(self, _context, _queue):
        raise NotImplementedError


class Waits(SaysCanceled, Works):
    pass


class SwallowsAndSays(SaysCanceled, Swallows):
    pass


class ThreadAndSays(SaysCanceled, InThread):
    pass


class BoundedAndSays(SaysCanceled, Bounded):
    pass


CASES = {
    "waits in an await": Waits,
    "swallows CancelledError": SwallowsAndSays,
    "works in `asyncio.to_thread`": ThreadAndSays,
    "has boundaries": BoundedAndSays,
    "`cancel()` is empty": EmptyCancel,
    "`cancel()` hangs": HangingCancel,
    "`cancel()` raises": RaisingCancel,
}

STORES = {
    "is canceled at another replica": DatabaseTaskStore,
    "the same, task store with versions": VersionedDatabaseTaskStore,
}


async def answer_of(server, task_id):
    started = time.perf_counter()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            said = state_of(await server.cancel(task_id)).lower()
    except TimeoutError:
        said = "no answer"
    except Exception as error:
        said = type(error).__name__.removesuffix("Error")
    return said, time.perf_counter() - started


@contextlib.asynccontextmanager
async def serving(inner, is_plain, **how):
    """Serve an executor with a supervisor of its own: one whose server was closed takes no runs any more."""
    async with (
        stoppable.Supervisor() as supervisor,
        served(inner, None if is_plain else supervisor, **({} if is_plain else how)) as server,
    ):
        yield server


async def case(kind, is_plain):
    inner = kind()
    async with serving(inner, is_plain) as server:
        return await observed(inner, server, server)


async def at_the_other_replica(store, is_plain):
    """Return the same for a cancel at a replica that does not execute the task."""
    with tempfile.TemporaryDirectory() as folder:
        async with replicas(store, folder, Waits, is_plain=is_plain) as (inner, here, there):
            return await observed(inner, here, there)


async def observed(inner, here, there):
    """Start a task, cancel it, and return the answer, how the stream ended, what is stored, and the effects after."""
    stream = here.stream()
    task_id = await stream.started()
    await inner.working.wait()
    said, seconds = await answer_of(there, task_id)
    before = inner.effects
    await asyncio.sleep(STEP_SECONDS * STEPS + 0.5)
    after = inner.effects - before
    stored = (await here.state(task_id)).lower()
    ended = "open" if not stream.task.done() else (stream.states or ["nothing"])[-1].lower()
    await stream.leave()
    if isinstance(inner, HangingCancel):  # the SDK's own end waits for the lock that its cancel holds
        inner.let_go.set()
    return f"{said}, {seconds * 1000:.0f} ms", ended, stored, after


async def sigterm(is_plain):
    """Return how the stream of a task ends whose server is terminated, and what is stored."""
    with tempfile.TemporaryDirectory() as folder:
        with process_in(folder, *(["plain"] if is_plain else [])) as (url, server):
            async with calling(url, is_wrapped=False) as remote:
                stream = Stream(remote.send_message(message()))
                task_id = await stream.started()
                server.terminate()
                await asyncio.wait({stream.task})
                ended = "broken" if stream.task.exception() else stream.states[-1].lower()
            await asyncio.to_thread(server.wait)
        async with task_store(DatabaseTaskStore, folder) as store:
            stored = state_of(await store.get(task_id, ServerCallContext())).lower()
    return "(no cancel)", ended, stored, "–"


async def races(is_plain):
    found = []
    for mode, count in RACES.items():
        inner = Races()
        async with serving(inner, is_plain, mode=mode) as server:
            found.append(
                sum([await race(server, inner, number, STREAM_SECONDS) is not None for number in range(count)])
            )
    return found


async def together(is_plain):
    """Return how many of the cancels were answered with canceled, and how many streams stayed open."""
    inner, said, stuck = Races(), 0, 0
    async with serving(inner, is_plain) as server:
        for _ in range(ROUNDS):
            inner.working.clear()
            stream = server.stream()
            task_id = await stream.started()
            await inner.working.wait()
            answers = await asyncio.gather(*(answer_of(server, task_id) for _ in range(CLIENTS)))
            said += sum(answer == "canceled" for answer, _ in answers)
            await asyncio.wait({stream.task}, timeout=STREAM_SECONDS)
            stuck += not stream.task.done()
            await stream.leave()
    return said, stuck


async def many(is_plain):
    """Return the seconds that many cancels at once take."""
    inner = Races()
    async with serving(inner, is_plain) as server:
        streams = [server.stream() for _ in range(MANY)]
        ids = [await stream.started() for stream in streams]
        while len(inner.tasks) < MANY:
            await asyncio.sleep(0.01)
        started = time.perf_counter()
        await asyncio.gather(*(answer_of(server, task_id) for task_id in ids))
        seconds = time.perf_counter() - started
        await asyncio.wait({stream.task for stream in streams}, timeout=10)
        for stream in streams:
            await stream.leave()
    return seconds


async def cpu(is_plain):
    """Return the milliseconds of CPU that a cancel costs without HTTP, five at a time, while the other tasks wait."""
    async with serving(Races(), is_plain) as server:
        handler, ids = server.handler, []
        for _ in range(MANY):
            request = message()
            request.configuration.return_immediately = True
            ids.append((await handler.on_message_send(request, ServerCallContext())).id)
        started = time.process_time()
        for first in range(0, MANY, 5):
            requests = [CancelTaskRequest(id=task_id) for task_id in ids[first : first + 5]]
            await asyncio.gather(*(handler.on_cancel_task(request, ServerCallContext()) for request in requests))
        return (time.process_time() - started) / MANY * 1000


class Tells(Races):
    async def work(self, _context, updater):
        for _ in range(EVENTS):
            await updater.start_work()


async def events(is_plain):
    """Return how many events a second a client reads."""
    async with serving(Tells(), is_plain) as server:
        started = time.perf_counter()
        stream = server.stream()
        await asyncio.wait({stream.task})
        return len(stream.events) / (time.perf_counter() - started)


async def measure():
    lines = [
        "| the executor | | the cancel says | the stream ends | stored | effects after the answer |",
        "|---|---|---|---|---|---|",
    ]
    cases = {
        **{title: functools.partial(case, kind) for title, kind in CASES.items()},
        **{title: functools.partial(at_the_other_replica, store) for title, store in STORES.items()},
        "its server gets SIGTERM": sigterm,
    }
    for title, row in cases.items():
        for is_plain in (True, False):
            said, ended, stored, after = await row(is_plain)
            name = "plain SDK" if is_plain else "stoppable"
            lines.append(f"| {title if is_plain else ''} | {name} | {said} | {ended} | {stored} | {after} |")
            print(lines[-1], flush=True)
    rows = []
    for is_plain in (True, False):
        one, two = await races(is_plain)
        said, stuck = await together(is_plain)
        seconds, rate, milliseconds = await many(is_plain), await events(is_plain), await cpu(is_plain)
        rows.append(
            (
                f"{one} of {RACES['graceful']}, {two} of {RACES['immediate']}",
                f"{said} of {ROUNDS * CLIENTS}",
                stuck,
                f"{seconds:.2f} s",
                f"{rate:.0f}",
                f"{milliseconds:.1f} ms",
            )
        )
        print(rows[-1], flush=True)
    titles = (
        "races between cancel and end that contradict themselves",
        f"canceled, of {CLIENTS} cancels at once, {ROUNDS} times",
        "streams that stayed open",
        f"{MANY} cancels at once",
        "events a second, one reader",
        CPU_ROW,
    )
    lines += ["", "| | plain SDK | stoppable |", "|---|---|---|"]
    lines += [f"| {title} | {plain} | {ours} |" for title, plain, ours in zip(titles, *rows, strict=True)]
    return [*lines, "", WHERE_IT_GOES]


def main():
    logging.disable(logging.CRITICAL)
    began = (
        f"# Cancels over A2A\n\na2a-sdk {version('a2a-sdk')}, Python {sys.version.split()[0]}. The work is done in "
        "steps of 20 ms, three seconds in all; stoppable with its defaults (graceful, four seconds).\n"
        f"Measured on {os.cpu_count()} cores with a load of {os.getloadavg()[0]:.1f} before it began: unless that is "
        "near 0, the states and counts are exact and the times are not.\n"
    )
    lines = asyncio.run(measure())
    text = "\n".join([began, *lines, ""])
    (ROOT / "bench/results/a2a.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

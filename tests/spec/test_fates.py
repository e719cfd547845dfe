"""Fates are those of the effect: one word per case, whoever awaited it (docs/semantics.md, Fates)."""

import asyncio
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable._core.node import Sink
from stoppable.records import to_json


def fates(handle, kind):
    return [node.fate for node in handle.run.receipt.entries if node.kind == kind]


async def words(arrived):
    while True:
        arrived.append("word")
        yield "word"
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("way", ["boundary", "decorated", "stream", "guard"])
async def test_a_stream_that_the_stop_closes_between_two_chunks_is_closed(way):
    arrived = []

    class Client:
        def ask(self):
            return words(arrived)

    async def agent():
        if way == "boundary":
            with stoppable.boundary("llm", "ask"):
                async for _ in stoppable.stream(words(arrived)):
                    pass
        elif way == "decorated":
            async for _ in stoppable.stream(stoppable.boundary("llm", "ask")(words)(arrived)):
                pass
        elif way == "stream":
            async for _ in stoppable.stream(words(arrived)):
                pass
        else:
            async for _ in stoppable.guard(Client(), "llm", "ask").ask():
                pass

    handle = await stoppable.spawn(agent)
    await until(lambda: len(arrived) > 2)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "signal", True)
    assert set(fates(handle, "llm")) == {"closed"}
    assert fates(handle, "run") == ["stopped"]


@pytest.mark.parametrize(("others", "fate"), [([], "closed"), ([ValueError("its own")], "finished")])
async def test_a_tool_whose_branches_take_the_stop_is_closed_unless_one_fails_by_itself(others, fate):
    async def agent():
        with stoppable.boundary("tool"):
            found = await asyncio.gather(stoppable.sleep(60), stoppable.sleep(60), return_exceptions=True)
            raise BaseExceptionGroup(
                "of a task group", [found[0], BaseExceptionGroup("of another", found[1:]), *others]
            )

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert fates(handle, "tool") == [fate]


async def test_a_tool_that_takes_the_stop_at_a_wait_inside_it_is_closed():
    async def agent():
        with stoppable.boundary("tool"):
            await stoppable.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    await handle.stop()
    await handle.outcome()
    assert fates(handle, "tool") == ["closed"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_thread_that_outlives_cancel_has_finished_though_nobody_waited_for_it(fails):
    began, release = threading.Event(), threading.Event()

    def work():
        began.set()
        release.wait(30)
        if fails:
            raise ValueError

    async def agent():
        with stoppable.boundary("tool"):
            await stoppable.to_thread(work)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    handle.run.stop("immediate")
    await until(lambda: handle.run.body_end)
    assert handle.run.in_flight == ("tool",)
    release.set()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", True)
    assert fates(handle, "tool") == ["finished"]


async def _in_task(work):
    await asyncio.create_task(asyncio.to_thread(work))


async def _in_task_of_task(work):
    await asyncio.create_task(_in_task(work))


async def _in_gather(work):
    await asyncio.gather(asyncio.to_thread(work), asyncio.sleep(0))


async def _in_task_group(work):
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(work))


async def _in_wait(work):
    await asyncio.wait([asyncio.create_task(asyncio.to_thread(work))])


async def _in_wait_for(work):
    await asyncio.wait_for(asyncio.to_thread(work), 60)


async def _in_our_thread(work):
    await asyncio.create_task(stoppable.to_thread(work))


WAYS = [
    asyncio.to_thread,
    _in_task,
    _in_task_of_task,
    _in_gather,
    _in_task_group,
    _in_wait,
    _in_wait_for,
    _in_our_thread,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("is_instrumented", [False, True], ids=["plain", "instrumented"])
async def test_a_tool_whose_thread_works_on_after_cancel_ends_with_the_thread(way, is_instrumented):
    began, release = threading.Event(), threading.Event()
    if is_instrumented:
        stoppable.instrument()

    def work():
        began.set()
        release.wait(30)

    async def agent():
        async with stoppable.boundary("tool"):
            await way(work)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    handle.run.stop("immediate")
    await until(lambda: handle.run.body_end)
    assert "tool" in handle.run.in_flight
    release.set()
    assert (await handle.outcome()).status == "stopped"
    assert fates(handle, "tool") == ["finished"]


async def test_a_tool_that_waits_for_no_thread_is_cancelled_though_another_task_of_the_run_has_one():
    began, release = threading.Event(), threading.Event()

    def work():
        began.set()
        release.wait(30)

    async def agent():
        background = asyncio.create_task(asyncio.to_thread(work))
        async with stoppable.boundary("tool"):
            await asyncio.sleep(60)
        await background

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    handle.run.stop("immediate")
    await until(lambda: handle.run.body_end)
    release.set()
    assert (await handle.outcome()).status == "stopped"
    assert fates(handle, "tool") == ["cancelled"]


async def test_a_thread_that_never_ends_leaves_its_boundary_abandoned(clock):
    began, release = threading.Event(), threading.Event()

    def work():
        began.set()
        release.wait(30)

    async def agent():
        with stoppable.boundary("tool"):
            await stoppable.to_thread(work)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    handle.run.stop("immediate")
    await until(lambda: handle.run.body_end)
    clock.advance(7)
    outcome = await handle.outcome()
    release.set()
    assert (outcome.status, outcome.clean) == ("lost", False)
    assert fates(handle, "tool") == ["abandoned"]


async def test_two_threads_of_one_effect_end_it_together():
    releases, ended = [threading.Event(), threading.Event()], []

    def work(release):
        ended.append("no")
        release.wait(30)
        ended.append("yes")

    class Told(Sink):
        def left(self, run, boundary):
            told.append((boundary.label, boundary.fate))

    told = []

    async def agent():
        stoppable.current_run().sink = Told()
        async with stoppable.boundary("tool"):
            first = stoppable.bind(work)
            thread = threading.Thread(target=first, args=(releases[0],), daemon=True)
            thread.start()
            await stoppable.to_thread(work, releases[1])

    handle = await stoppable.spawn(agent)
    await until(lambda: ended.count("no") == 2)
    handle.run.stop("immediate")
    await until(lambda: handle.run.body_end)
    releases[0].set()
    await until(lambda: "yes" in ended)
    assert handle.run.in_flight == ("tool",)
    releases[1].set()
    assert (await handle.outcome()).status == "stopped"
    assert fates(handle, "tool") == ["finished"]
    assert [each for each in told if each[0] == "tool"] == [("tool", "finished")]


async def test_an_error_of_its_own_after_cancel_is_how_an_effect_finished():
    release = threading.Event()

    def agent():
        with stoppable.boundary("tool"):
            release.wait(30)
            raise ValueError

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    handle.run.stop("immediate")
    await until(lambda: handle.run.rung == "cancel")
    release.set()
    await handle.outcome()
    assert fates(handle, "tool") == ["finished"]


async def test_an_effect_that_a_hook_ends_at_interrupt_is_interrupted():
    release = threading.Event()

    def agent():
        with stoppable.boundary("tool"), stoppable.on_interrupt(release.set):
            release.wait(30)
            raise ConnectionError

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    handle.run.stop("immediate")
    await handle.outcome()
    assert fates(handle, "tool") == ["interrupted"]


@pytest.mark.parametrize("translated", [False, True])
async def test_an_effect_that_cancel_ends_is_cancelled_though_it_makes_an_error_of_it(translated):
    async def agent():
        with stoppable.boundary("tool"):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if translated:
                    raise ValueError from None
                raise

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    handle.run.stop("immediate")
    await handle.outcome()
    assert fates(handle, "tool") == ["cancelled"]


async def test_an_effect_that_only_kill_ends_is_killed(clock):
    async def agent():
        with stoppable.boundary("tool"):
            while stoppable.current_run().rung != "kill":
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    if stoppable.current_run().rung == "kill":
                        raise

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.in_flight)
    handle.run.stop("immediate")
    await asyncio.sleep(0)
    clock.advance(5)
    assert (await handle.outcome()).rung == "kill"
    assert fates(handle, "tool") == ["killed"]


class Silent:
    """A call to a service that takes the cancel, and never says whether the work has ended."""

    def __init__(self, *, returns):
        self.returns, self.delivered, self.begun = returns, asyncio.Event(), asyncio.Event()

    async def tell(self, stop):
        self.delivered.set()
        return "told"

    async def call(self):
        async with stoppable.remote("tool", tell=self.tell, ref={}) as node:
            self.node = node
            self.begun.set()
            await self.delivered.wait()
            if not self.returns:
                await stoppable.sleep(60)
            return "what had come"

    async def agent(self):
        return await self.call()


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_remote_that_cannot_confirm_its_end_is_told_and_its_run_is_not_lost(clock, mode, returns):
    silent = Silent(returns=returns)
    handle = await stoppable.spawn(silent.agent)
    await silent.begun.wait()
    await handle.stop(mode)
    outcome = await handle.outcome()  # the clock stands still: no rung is waited for
    assert (outcome.status, silent.node.run.status) == ("stopped", "stopped")
    assert outcome.rung in {"signal", "cancel"}
    assert fates(handle, "remote") == ["told"]
    assert handle.run.receipt.in_flight == ("remote:tool",)
    assert [entry["fate"] for entry in to_json(handle.run.receipt)["entries"] if entry["kind"] == "remote"] == ["told"]


async def test_a_remote_that_is_told_stays_told_whatever_it_says_later(clock):
    silent = Silent(returns=False)
    handle = await stoppable.spawn(silent.agent)
    await silent.begun.wait()
    await handle.stop()
    await handle.outcome()
    final = handle.run.receipt
    silent.node.ended("finished")
    assert (silent.node.fate, handle.run.receipt) == ("told", final)

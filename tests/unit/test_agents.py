"""@agent, spawn, call, open_run, sleep, partials."""

import asyncio
import contextlib
import functools
import pickle
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable import InvalidArgument, sync
from stoppable._core.node import RunNode
from stoppable._engine.waits import await_end


async def test_keyword_arguments_go_through_partial():
    @stoppable.agent
    async def greet(name, *, greeting):
        return f"{greeting} {name}"

    handle = await stoppable.spawn(functools.partial(greet, greeting="hello"), "ann")
    assert (await handle.result(), handle.run.name) == ("hello ann", "greet")
    plain = await stoppable.spawn(functools.partial(asyncio.sleep, 0, "done"))
    assert await plain.result() == "done"


async def test_methods_and_callable_objects_are_agents():
    class Bot:
        @stoppable.agent
        async def answer(self, question):
            return f"{question}? {stoppable.current_run().name}"

        async def __call__(self, text):
            return text.upper()

    assert await (await stoppable.spawn(Bot().answer, "why")).result() == "why? answer"
    handle = await stoppable.spawn(Bot(), "loud")
    assert (await handle.result(), handle.run.name) == ("LOUD", "Bot")


@pytest.mark.parametrize("bad", [None, "agent", 3])
async def test_what_is_no_agent_is_refused(bad):
    with pytest.raises(InvalidArgument, match="is not an agent"):
        await stoppable.spawn(bad)
    with pytest.raises(InvalidArgument, match="is not an agent"):
        stoppable.agent(bad)


async def test_an_error_reaches_the_caller_of_an_agent_unchanged_and_the_caller_of_call_as_run_failed():
    @stoppable.agent
    async def broken():
        raise ValueError("own")

    async with stoppable.open_run("outer"):
        with pytest.raises(ValueError, match="own"):
            await broken()
        with pytest.raises(stoppable.RunFailed) as caught:
            await stoppable.call(broken)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "own" in str(caught.value)


async def test_an_error_of_the_block_passes_open_run_unchanged():
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with stoppable.open_run("work") as run:
            raise error
    assert caught.value is error
    assert run.outcome.error is error
    with pytest.raises(KeyError):
        with stoppable.open_run("work"):
            raise error


async def test_open_run_raises_run_stopped_at_its_end():
    with pytest.raises(stoppable.RunStopped, match="enough"):
        async with stoppable.open_run("work") as run:
            run.stop(reason="enough")
            await stoppable.sleep(60)
    assert run.status == "stopped"


def test_open_run_works_in_blocking_code():
    with pytest.raises(stoppable.RunStopped):
        with stoppable.open_run("work") as run:
            run.stop()
            stoppable.check()
    assert run.status == "stopped"
    with stoppable.open_run("fine") as run:
        pass
    assert run.status == "completed"


async def test_sleep_is_woken_by_a_stop_at_once():
    async def agent():
        await stoppable.sleep(60)

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        await handle.stop("cooperative")
        await handle.outcome()


async def test_sleep_follows_the_fake_clock(clock):
    async def agent():
        await stoppable.sleep(0)
        await stoppable.sleep(3600)
        async with stoppable.shielded(5):
            await stoppable.sleep(10)
        return "rested"

    handle = await stoppable.spawn(agent)
    while not handle.status.terminal:
        await asyncio.sleep(0)
        clock.advance(3600)
    assert await handle.result() == "rested"


@pytest.mark.parametrize("bad", [-1, float("inf"), "1", True])
async def test_a_duration_that_makes_no_sense_is_refused(bad):
    with pytest.raises(InvalidArgument, match="seconds from 0 up"):
        await stoppable.sleep(bad)
    with pytest.raises(InvalidArgument, match="seconds from 0 up"):
        stoppable.shielded(bad)
    with pytest.raises(InvalidArgument, match="grace"):
        stoppable.Policy(grace=bad)


async def test_partials_extend_text_and_lists():
    async def texts():
        stoppable.append_partial("a")
        stoppable.append_partial("b")

    async def set_then_append():
        stoppable.set_partial("a")
        stoppable.append_partial("b")

    async def items():
        stoppable.append_partial("a")
        stoppable.append_partial(1)

    async def listed():
        stoppable.set_partial([1])
        stoppable.append_partial(2)

    partials = [(await (await stoppable.spawn(a)).outcome()).partial for a in (texts, set_then_append, items, listed)]
    assert partials == ["ab", "ab", ["a", 1], [1, 2]]


async def test_appending_to_what_is_neither_text_nor_list_is_refused():
    async with stoppable.open_run("work"):
        stoppable.set_partial({"a": 1})
        with pytest.raises(InvalidArgument, match="set_partial"):
            stoppable.append_partial("b")


async def test_threads_that_append_first_at_once_lose_nothing():
    for _ in range(50):
        async with stoppable.open_run("work") as run:
            go = threading.Barrier(4)
            context = __import__("contextvars").copy_context

            def append(go=go):
                go.wait(60)
                stoppable.append_partial("x")

            threads = [threading.Thread(target=context().run, args=(append,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert run.outcome.partial == "xxxx"


async def test_generator_agents_stream_and_stop_between_items():
    made = []

    @stoppable.agent
    async def numbers():
        for number in range(100):
            made.append(number)
            yield number

    handle = await stoppable.spawn(numbers)
    assert [number async for number in handle.stream()] == list(range(100))
    made.clear()
    received = []
    async with stoppable.open_run("consumer"):
        async for number in numbers():
            received.append(number)
            if number == 2:
                break
        else:
            pytest.fail("left the loop too late")
    assert received == [0, 1, 2]
    assert len(made) <= 4, "a generator in a run is as lazy as a plain one"


async def test_a_stopped_generator_agent_gives_what_it_had_and_then_run_stopped():
    @stoppable.agent
    async def numbers():
        yield 1
        yield 2
        await stoppable.sleep(60)

    handle = await stoppable.spawn(numbers)
    received = []
    with pytest.raises(stoppable.RunStopped):
        async for number in handle.stream():
            received.append(number)
            if number == 2:
                await handle.stop()
    assert received == [1, 2]


async def test_a_stopped_run_stops_the_generator_agent_it_reads():
    closed, read = [], []

    @stoppable.agent
    async def numbers():
        try:
            while True:
                yield 1
                await stoppable.sleep(0.001)
        finally:
            closed.append(True)

    async def consumer():
        async for number in numbers():
            read.append(number)

    handle = await stoppable.spawn(consumer)
    await until(lambda: len(read) > 2)
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert closed == [True]


async def test_a_handle_of_a_plain_agent_has_no_stream():
    handle = await stoppable.spawn(asyncio.sleep, 0)
    with pytest.raises(InvalidArgument, match="not a generator agent"):
        async for _ in handle.stream():
            pass
    await handle.outcome()


@pytest.mark.parametrize("spawn", [stoppable.spawn, sync.spawn])
async def test_a_function_that_only_makes_a_coroutine_is_told_what_to_pass(spawn):
    began = []

    async def agent(x):
        began.append(x)

    spawned = spawn(lambda: agent(1))
    run = (await spawned if spawn is stoppable.spawn else spawned).run
    outcome = await until(lambda: run.outcome)
    assert (outcome.status, began) == ("failed", [])
    with pytest.raises(InvalidArgument, match="pass the async function itself"):
        raise outcome.error


class Answer:
    def __await__(self):
        yield from asyncio.sleep(0).__await__()


@pytest.mark.parametrize("spawn", [stoppable.spawn, sync.spawn])
async def test_a_plain_function_whose_result_must_be_awaited_fails_and_says_what_to_pass(spawn):
    def agent():
        return Answer()

    spawned = spawn(agent)
    run = (await spawned if spawn is stoppable.spawn else spawned).run
    outcome = await until(lambda: run.outcome)
    assert outcome.status == "failed"
    with pytest.raises(InvalidArgument, match="returned 'Answer', which is never awaited: pass an async function"):
        raise outcome.error


async def test_a_boundary_object_is_for_one_with_at_a_time():
    async with stoppable.open_run("work"):
        reused = stoppable.boundary("tool", "x")
        with reused:
            with pytest.raises(InvalidArgument, match="again"):
                reused.__enter__()
            with stoppable.shielded(1), pytest.raises(InvalidArgument, match="again"):
                reused.__enter__()
        with reused:
            pass
    assert repr(reused) == "<boundary tool:x>"


async def test_a_shield_cannot_span_a_yield():
    import contextvars

    def generator():
        with stoppable.shielded(1):
            yield

    async with stoppable.open_run("work"):
        spanning = generator()
        contextvars.copy_context().run(next, spanning)
        with pytest.raises(stoppable.StoppableError, match="cannot span a yield"):
            next(spanning)


async def test_errors_survive_pickling():
    handle = await stoppable.spawn(asyncio.sleep, 60)
    await asyncio.sleep(0)
    await handle.stop("immediate", "why", "ann")
    outcome = await handle.outcome()
    stopped = pickle.loads(pickle.dumps(stoppable.RunStopped(handle.id, outcome)))
    assert (stopped.run_id, stopped.outcome) == (handle.id, outcome)
    inside = pickle.loads(pickle.dumps(stoppable.AgentStopped("target", outcome.reason)))
    assert (inside.target, str(inside)) == ("target", "run target was told to stop: why (ann)")


async def test_representations_say_what_a_reader_wants_to_know():
    handle = await stoppable.spawn(asyncio.sleep, 0)
    assert "'sleep' pending" in repr(handle)
    await handle.outcome()
    assert "'sleep' completed" in repr(handle.run)
    assert "not stopped" in repr(handle.run.token)
    assert handle.run.receipt is None
    assert str(stoppable.Reason(kind=stoppable.ReasonKind.LIMIT)) == "stopped by limit"
    assert repr(stoppable._core.context.OUTSIDE) == "<outside any run>"


async def test_a_cancel_that_cannot_hit_a_thread_leaves_its_clean_up_clean(clock):
    began, cleaning, release = threading.Event(), threading.Event(), threading.Event()

    def agent():
        try:
            while True:
                stoppable.check()
                began.set()
        finally:
            cleaning.set()
            release.wait(60)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    await handle.stop("graceful", grace=0)
    await until(cleaning.is_set)
    clock.advance(1)
    release.set()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", True)


def test_a_waiter_whose_loop_was_closed_holds_up_no_other():
    """G2: whoever waits for the end hears of it, though the loop of another is gone."""
    run = RunNode("run")
    run.begin(None)
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        waiting = loop.create_task(await_end(run))
        waiting._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0))
    woken = []
    run.when_ended(lambda: woken.append("woken"))
    run.end(None, None)
    assert woken == ["woken"]


@pytest.mark.parametrize("in_run", [False, True], ids=["root", "child"])
async def test_a_call_of_a_blocking_agent_that_is_cancelled_from_outside_stops_it(in_run):
    """Nobody else holds it: it would go on for ever, out of reach."""
    runs, begun = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless():
        runs.append(stoppable.current_run())
        loop.call_soon_threadsafe(begun.set)
        while True:
            sync.sleep(60)

    async def caller():
        async with stoppable.open_run("caller") if in_run else contextlib.nullcontext() as run:
            with pytest.raises(asyncio.CancelledError):  # as asyncio.timeout() does
                await stoppable.call(endless)
            asyncio.current_task().uncancel()
            await until(lambda: runs[0].outcome is not None)
        assert run is None or run.outcome.status == "completed"

    task = asyncio.create_task(caller())
    await begun.wait()
    task.cancel()
    try:
        await task
    finally:
        runs[0].stop("immediate")
    assert (runs[0].outcome.status, runs[0].outcome.reason.kind) == ("stopped", "external")


async def test_a_call_whose_caller_is_stopped_is_not_stopped_any_harder():
    begun, finish = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def polite():
        loop.call_soon_threadsafe(begun.set)
        finish.wait(60)

    async def caller():
        await stoppable.call(polite)

    handle = await stoppable.spawn(caller)
    await begun.wait()
    [child] = handle.run.list_children()
    await handle.stop(grace=0)
    await until(lambda: handle.run.rung == "cancel")
    assert child.receipt.mode == "graceful"
    finish.set()
    assert (await handle.outcome()).status == "stopped"
    assert child.receipt.mode == "graceful"

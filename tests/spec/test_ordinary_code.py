"""What ordinary code looks like: wrappers, generators, recursion, leftovers. A stop must see through it."""

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import textwrap

import pytest
from tests.waiting import until

import stoppable


def logged(function):
    """Works for functions of every kind, as such wrappers do: it returns whatever the function returns."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


# A def that returns a coroutine or a generator


async def test_a_boundary_over_a_def_that_returns_a_coroutine_is_entered_when_that_is_awaited():
    made, started = asyncio.Event(), []

    @stoppable.boundary("llm")
    @logged
    async def ask():
        started.append(True)

    async def agent():
        coroutine = ask()
        made.set()
        await until(lambda: stoppable.current_run().token.stopped)
        await coroutine

    handle = await stoppable.spawn(agent)
    await made.wait()
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert not started


async def test_it_is_in_flight_while_it_is_awaited_and_counts_once():
    entered, release = asyncio.Event(), asyncio.Event()

    @stoppable.boundary("llm", "ask")
    @logged
    async def ask():
        entered.set()
        await release.wait()
        return "answer"

    async def agent():
        with stoppable.open_run("limited", limits=stoppable.Limits(boundaries={"llm": 1})) as run:
            runs.append(run)
            return await ask()

    runs = []
    handle = await stoppable.spawn(agent)
    await entered.wait()
    assert runs[0].in_flight == ("llm:ask",)
    release.set()
    assert await handle.result() == "answer"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_boundary_over_a_def_that_returns_a_generator_is_in_flight_while_that_is_read(asynchronous):
    async def items_async():
        yield 1
        yield 2

    def items():
        yield 1
        yield 2

    seen = []

    async def agent():
        run = stoppable.current_run()
        if asynchronous:
            async for item in stoppable.boundary("llm", "items")(logged(items_async))():
                seen.append((item, run.in_flight))
        else:
            for item in stoppable.boundary("llm", "items")(logged(items))():
                seen.append((item, run.in_flight))
        return run.in_flight

    assert await (await stoppable.spawn(agent)).result() == ()
    assert seen == [(1, ("llm:items",)), (2, ("llm:items",))]


async def test_an_agent_over_a_def_that_returns_a_coroutine_is_a_run_to_the_end_of_that():
    runs = []

    @stoppable.agent
    @logged
    async def ask():
        runs.append(stoppable.current_run())
        with stoppable.boundary("tool"):
            await asyncio.sleep(60)

    async def agent():
        await ask()

    handle = await stoppable.spawn(agent)
    await until(lambda: runs and runs[0].in_flight)
    assert (runs[0].name, runs[0].parent) == ("ask", handle.run)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("tool",)
    assert (await handle.outcome()).status == "stopped"
    assert runs[0].outcome.status == "stopped"


async def test_it_returns_its_value_raises_its_error_and_may_be_a_task():
    @stoppable.agent
    @logged
    async def ask(answer):
        await asyncio.sleep(0)
        if answer is None:
            raise KeyError("mine")
        return answer

    async def agent():
        with pytest.raises(KeyError, match="mine"):
            await ask(None)
        return await ask("one"), await asyncio.create_task(ask("two")), stoppable.current_run().name

    assert await (await stoppable.spawn(agent)).result() == ("one", "two", "agent")


@pytest.mark.parametrize("kept", [False, True])
async def test_one_that_nobody_awaits_holds_up_nothing(kept):
    coroutines = []

    @stoppable.agent
    @logged
    async def ask():
        raise AssertionError

    async def agent():
        coroutines.append(ask())
        if not kept:
            coroutines.clear()
        return "done"

    assert await (await stoppable.spawn(agent)).result() == "done"


async def test_one_that_is_awaited_after_the_stop_never_begins():
    made = asyncio.Event()

    @stoppable.agent
    @logged
    async def ask():
        raise AssertionError

    async def agent():
        coroutine = ask()
        made.set()
        await until(lambda: stoppable.current_run().token.stopped)
        await coroutine

    handle = await stoppable.spawn(agent)
    await made.wait()
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.error) == ("stopped", None)


async def test_one_that_is_closed_or_thrown_into_before_it_is_awaited_ends_its_run():
    @stoppable.agent
    @logged
    async def ask():
        raise AssertionError

    async def agent():
        ask().close()
        with pytest.raises(KeyError):
            ask().throw(KeyError())
        return [run.status for run in stoppable.current_run().list_children()]

    assert await (await stoppable.spawn(agent)).result() == []


# A stream that another run reads on


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_decorated_generator_is_listed_in_the_run_that_reads_it(asynchronous):
    @stoppable.boundary("llm", "tokens")
    async def tokens_async():
        while True:
            yield "t"

    @stoppable.boundary("llm", "tokens")
    def tokens():
        while True:
            yield "t"

    @stoppable.agent
    async def ask():
        stream = tokens_async() if asynchronous else tokens()
        await anext(stream) if asynchronous else next(stream)
        return stream

    async def parent():
        stream = await ask()
        while True:
            await anext(stream) if asynchronous else next(stream)
            read.set()
            await asyncio.sleep(0)

    read = asyncio.Event()
    handle = await stoppable.spawn(parent)
    await read.wait()
    assert (await handle.stop()).in_flight == ("llm:tokens",)
    assert (await handle.outcome()).status == "stopped"
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "llm"] == ["closed"]


async def test_a_decorated_generator_that_was_begun_outside_a_run_is_listed_in_the_run_that_reads_it():
    @stoppable.boundary("llm", "tokens")
    def tokens():
        while True:
            yield "t"

    stream, other = tokens(), tokens()
    next(stream)
    next(other)
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("reads") as run:
            next(stream)
            assert run.in_flight == ("llm:tokens",)
            run.stop()
            stream.close()
            next(other)
    assert [(node.kind, node.fate) for node in run.receipt.entries] == [("run", "stopped"), ("llm", "closed")]


async def test_a_def_that_returns_a_coroutine_may_be_called_outside_a_run_and_in_a_shield():
    @stoppable.boundary("llm", "ask")
    @logged
    async def ask():
        return "answer"

    assert await ask() == "answer"
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("shielded") as run:
            run.stop()
            async with stoppable.shielded(5):
                assert await ask() == "answer"
            stoppable.check()
    assert run.receipt.entered_after == ("llm:ask", "llm:ask")


# open_run in a generator


async def test_open_run_in_a_generator_that_is_read_is_refused_and_says_what_works():
    async def chat():
        async with stoppable.open_run("chat"):
            yield "token"

    def blocking():
        with stoppable.open_run("chat"):
            yield "token"

    def delegating():
        yield from blocking()

    with pytest.raises(stoppable.StoppableError, match=r"open_run\(\) cannot span the yields of .*chat"):
        async for _ in chat():
            pass
    with pytest.raises(stoppable.StoppableError, match=r"cannot span the yields of .*blocking"):
        next(blocking())
    with pytest.raises(stoppable.StoppableError, match=r"@stoppable\.agent"):
        list(delegating())
    with stoppable.boundary("store"):
        assert stoppable.current_run() is None


async def test_open_run_in_a_context_manager_or_an_exit_stack_is_a_block_like_any_other():
    @contextlib.asynccontextmanager
    async def chat():
        async with stoppable.open_run("chat") as run:
            yield run

    @contextlib.contextmanager
    def blocking():
        with stoppable.open_run("chat") as run:
            yield run

    async with chat() as run:
        assert stoppable.current_run() is run
    with blocking() as run:
        assert stoppable.current_run() is run
    async with contextlib.AsyncExitStack() as stack:
        run = await stack.enter_async_context(stoppable.open_run("chat"))
        assert stoppable.current_run() is run


async def test_open_run_in_a_generator_agent_works():
    @stoppable.agent
    async def chat():
        async with stoppable.open_run("inner") as run:
            yield run.name

    async def agent():
        return [name async for name in chat()]

    assert await (await stoppable.spawn(agent)).result() == ["inner"]


# Recursion


def test_recursion_takes_two_frames_a_level():
    """In a process of its own: the frames of the test runner count too."""
    source = """
        import stoppable

        reached = 0

        @stoppable.agent
        async def level(depth):
            global reached
            reached = depth
            await level(depth + 1)

        @stoppable.agent
        def level_blocking(depth):
            global reached
            reached = depth
            level_blocking(depth + 1)

        for agent in (level, level_blocking):
            try:
                stoppable.run(agent, 0)
            except stoppable.RunFailed:
                print(reached)
        """
    done = in_a_process(source)
    assert all(int(line) > 450 for line in done.stdout.split()), done.stdout + done.stderr


def test_endless_recursion_fails_wherever_it_meets_the_end_of_the_stack():
    """Each frame more at the bottom lets the stack end at another line of ours."""
    source = """
        import asyncio
        import sys

        import stoppable

        @stoppable.agent
        async def level():
            await level()

        @stoppable.agent
        def level_blocking():
            level_blocking()

        async def opened():
            async with stoppable.open_run("level"):
                await opened()

        async def called():
            await stoppable.call(called)

        async def after(frames, agent):
            return await (after(frames - 1, agent) if frames else agent())

        def after_blocking(frames, agent):
            return after_blocking(frames - 1, agent) if frames else agent()

        async def main():
            async with stoppable.Supervisor() as supervisor:
                for begin, agent in (
                    (after, level), (after_blocking, level_blocking), (after, opened), (after, called)
                ):
                    for frames in range(6):
                        outcome = await (await supervisor.start(begin, frames, agent)).outcome()
                        print(agent.__name__, frames, outcome.status)

        sys.setrecursionlimit(250)
        asyncio.run(main())
        """
    done = in_a_process(source)
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["failed"] * 24, done.stdout + done.stderr


def in_a_process(source):
    script = [sys.executable, "-c", textwrap.dedent(source)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}  # tracing has frames
    return subprocess.run(script, capture_output=True, text=True, timeout=60, check=True, env=plain)

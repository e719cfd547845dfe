"""Generator agents of blocking code: called in a run, started beside it, or in a process of their own."""

import asyncio
import contextvars
import gc
import inspect
import threading

import pytest

import stoppable
from stoppable import sync
from stoppable._core.node import RunNode

runs = []
ended = []


@pytest.fixture(autouse=True)
def _forget():
    yield
    runs.clear()
    ended.clear()


@stoppable.agent
def numbers(count=1000):
    runs.append(stoppable.current_run())
    try:
        yield from range(count)
        return "all of them"
    finally:
        ended.append(True)


@stoppable.agent
def echo():
    heard = []
    while True:
        try:
            word = yield len(heard)
        except ValueError as error:
            word = str(error)
        if word is None:
            return heard
        heard.append(word)


def talk(generator):
    """Speak to a generator as ``yield from`` does, and return what it returns."""
    assert [next(generator), generator.send("a"), generator.throw(ValueError("b")), generator.send("c")] == [0, 1, 2, 3]
    with pytest.raises(StopIteration) as end:
        generator.send(None)
    return end.value.value


class TestCalledOutsideARun:
    def test_it_is_a_plain_generator(self):
        assert inspect.isgeneratorfunction(numbers)
        assert list(numbers(3)) == [0, 1, 2]
        assert talk(echo()) == ["a", "b", "c"]
        assert runs == [None]


class TestCalledInARun:
    def test_it_is_a_child_run_that_its_reader_executes(self):
        threads = []

        @stoppable.agent
        def inner():
            threads.append(threading.current_thread())
            yield stoppable.current_run()

        with stoppable.open_run("reader") as reader:
            (run,) = inner()
        assert (run.name, run.parent, run.status) == ("inner", reader, "completed")
        assert threads == [threading.current_thread()]

    def test_it_is_as_lazy_as_a_plain_one(self):
        with stoppable.open_run("reader"):
            items = numbers(3)
            assert not runs
            assert [next(items), runs[0].status, list(items), runs[0].status] == [0, "running", [1, 2], "completed"]

    def test_values_and_errors_go_in_and_a_value_comes_out(self):
        with stoppable.open_run("reader"):
            assert talk(echo()) == ["a", "b", "c"]

    def test_neither_sees_the_context_of_the_other(self):
        variable = contextvars.ContextVar("variable", default="none")
        seen = []

        @stoppable.agent
        def inner():
            variable.set("set inside")
            yield 1
            seen.append((variable.get(), stoppable.current_run().name))

        with stoppable.open_run("reader"):
            for _ in inner():
                seen.append((variable.get(), stoppable.current_run().name))
        assert seen == [("none", "reader"), ("set inside", "inner")]

    def test_an_error_of_its_body_reaches_the_reader_unchanged(self):
        @stoppable.agent
        def broken():
            yield 1
            raise KeyError("own")

        with stoppable.open_run("reader") as reader, pytest.raises(KeyError, match="own"):
            list(broken())
        assert reader.status == "completed"

    def test_leaving_early_ends_its_run_and_leaves_the_reader_alone(self):
        with stoppable.open_run("reader") as reader:
            for number in numbers():
                if number == 2:
                    break
            gc.collect()
            assert ended == [True]
        assert (runs[0].status, runs[0].outcome.reason.kind, runs[0].outcome.clean) == ("stopped", "disconnect", True)
        assert reader.status == "completed"

    def test_an_error_of_its_clean_up_reaches_whoever_closes_it(self):
        @stoppable.agent
        def clumsy():
            runs.append(stoppable.current_run())
            try:
                yield 1
            finally:
                raise OSError("clumsy")

        with stoppable.open_run("reader"):
            items = clumsy()
            next(items)
            with pytest.raises(OSError, match="clumsy"):
                items.close()
            items.close()
        assert runs[0].status == "failed"

    @pytest.mark.parametrize("in_task", [True, False])
    async def test_one_that_is_kept_ends_with_the_run_that_began_it(self, in_task):
        kept = []

        def agent():
            kept.append(numbers())
            return next(kept[0])

        async def async_agent():
            return agent()

        handle = await stoppable.spawn(async_agent if in_task else agent)
        async with asyncio.timeout(30):
            assert await handle.result() == 0
        assert (runs[0].status, ended) == ("stopped", [True])
        with pytest.raises(stoppable.RunStopped):
            next(kept[0])

    async def test_one_that_is_kept_by_a_blocking_agent_on_a_loops_thread_ends_with_it(self):
        kept = []

        @stoppable.agent
        def agent():
            kept.append(numbers())
            return next(kept[0])

        async with stoppable.open_run("outer"):
            assert agent() == 0
        assert (runs[0].status, ended) == ("stopped", [True])

    @pytest.mark.parametrize("in_task", [True, False])
    async def test_one_that_a_traceback_keeps_does_not_hold_up_the_stop(self, in_task):
        """The frame that is unwound still has the variable while the run waits for its children."""

        def agent():
            items = numbers()
            for _ in items:
                stoppable.current_run().stop()
                stoppable.check()

        async def async_agent():
            agent()

        handle = await stoppable.spawn(async_agent if in_task else agent)
        async with asyncio.timeout(30):
            outcome = await handle.outcome()
        assert (outcome.status, outcome.rung, ended) == ("stopped", "signal", [True])
        assert [(node.name, node.fate) for node in handle.run.receipt.entries][1:] == [("numbers", "stopped")]

    async def test_a_clean_up_that_fails_when_it_is_left_behind_is_in_its_own_outcome(self):
        kept = []

        @stoppable.agent
        def clumsy():
            runs.append(stoppable.current_run())
            try:
                yield 1
            finally:
                raise OSError("clumsy")

        def agent():
            kept.append(clumsy())
            return next(kept[0])

        assert await (await stoppable.spawn(agent)).result() == 1
        assert repr(runs[0].outcome.error) == "OSError('clumsy')"

    def test_a_stop_of_the_reader_lands_between_two_items_and_closes_it(self):
        received = []
        with pytest.raises(stoppable.RunStopped):
            with stoppable.open_run("reader") as reader:
                for number in numbers():
                    received.append(number)
                    if number == 2:
                        reader.stop("cooperative")
        assert (received, ended, runs[0].status) == ([0, 1, 2], [True], "stopped")

    def test_a_stop_lands_at_a_boundary_inside_it(self):
        @stoppable.agent
        def inner():
            yield 1
            stoppable.current_run().parent.stop("cooperative")
            with stoppable.boundary("tool", "never"):
                pytest.fail("never entered")

        with pytest.raises(stoppable.RunStopped):
            with stoppable.open_run("reader"):
                list(inner())

    async def test_a_stop_of_it_alone_leaves_its_reader_alone_whatever_the_force(self):
        """G13: the task that reads it is not cancelled on its behalf."""
        async with stoppable.open_run("reader") as reader:
            items = numbers()
            assert next(items) == 0
            runs[0].stop("kill", "alone")
            while runs[0].rung != "kill":
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
            with pytest.raises(stoppable.RunStopped, match="alone"):
                next(items)
            await asyncio.sleep(0)
        assert (reader.status, runs[0].outcome.rung, ended) == ("completed", "kill", [True])

    async def test_a_boundary_inside_it_does_not_make_its_readers_task_a_participant_of_it(self):
        """Otherwise a force on the generator's run would hit the reader, and that run would not end before the task."""

        @stoppable.agent
        def inner():
            runs.append(stoppable.current_run())
            with stoppable.boundary("llm"):
                yield 1
            stoppable.check()
            yield 2

        async with stoppable.open_run("reader"):
            items = inner()
            next(items)
            assert runs[0].stop("immediate").in_flight == ("llm",)
            await asyncio.sleep(0.01)
            with pytest.raises(stoppable.RunStopped):
                next(items)
        assert runs[0].status == "stopped"

    def test_one_that_is_read_in_a_stopped_run_does_not_begin(self):
        with pytest.raises(stoppable.RunStopped):
            with stoppable.open_run("reader") as reader:
                items = numbers()
                reader.stop("cooperative")
                next(items)
        assert not runs

    def test_one_that_was_stopped_before_it_began_does_not_begin(self, monkeypatch):
        """The stop comes between the birth of its run and its first step."""
        from stoppable._engine import agents

        def born_stopped(*_):
            run = RunNode("stopped", stoppable.current_run())
            run.stop("cooperative", "at once")
            return run

        monkeypatch.setattr(agents, "child_run", born_stopped)
        with stoppable.open_run("reader"), pytest.raises(stoppable.RunStopped, match="at once"):
            next(numbers())
        assert not runs

    def test_it_may_be_read_by_one_thread_after_the_other_but_not_by_two_at_once(self):
        inside, release = threading.Event(), threading.Event()
        received = []

        @stoppable.agent
        def inner():
            yield 1
            inside.set()
            release.wait(60)
            yield 2

        with stoppable.open_run("reader"):
            items = inner()
            assert next(items) == 1
            steps = items.gi_yieldfrom
            other = threading.Thread(target=lambda: received.append(next(items)))
            other.start()
            assert inside.wait(60)
            with pytest.raises(RuntimeError, match="already entered"):
                next(steps)
            release.set()
            other.join(60)
            assert received == [2]
            assert list(items) == []

    def test_runs_inside_it_are_its_children(self):
        @stoppable.agent
        def outer():
            for number in numbers(2):
                yield number, runs[0].parent.name

        with stoppable.open_run("reader"):
            assert list(outer()) == [(0, "outer"), (1, "outer")]

    async def test_a_reader_that_hangs_makes_it_lost_and_the_receipt_names_it(self, clock):
        began, release = threading.Event(), threading.Event()

        def agent():
            for _ in numbers():
                began.set()
                release.wait(60)
                stoppable.check()

        handle = await stoppable.spawn(agent)
        while not began.is_set():
            await asyncio.sleep(0.001)
        await handle.stop("kill")
        clock.advance(2)
        assert (await handle.outcome()).status == "lost"
        names = [node.name for node in handle.run.receipt.entries if node.kind == "participant"]
        assert any(name.startswith("test_generators.py:") and "(generator numbers)" in name for name in names)
        release.set()
        while not ended:
            await asyncio.sleep(0.001)


class TestStartedBesideTheCaller:
    async def test_it_runs_on_a_thread_and_its_handle_streams_what_it_yields(self):
        handle = await stoppable.spawn(numbers, 100)
        assert [number async for number in handle.stream()] == list(range(100))
        assert await handle.result() == "all of them"
        assert runs[0] is handle.run

    async def test_a_run_whose_stream_nobody_reads_ends(self):
        assert await (await stoppable.spawn(numbers, 100)).result() == "all of them"
        assert await stoppable.call(numbers, 100) == "all of them"

    async def test_a_stop_lands_between_two_items_and_what_it_yielded_is_kept(self):
        received = []
        waiting, release = threading.Event(), threading.Event()

        def held():
            try:
                yield 0
                yield 1
                waiting.set()
                release.wait(60)
                yield 2
                yield 3
            finally:
                ended.append(True)

        handle = await stoppable.spawn(held)
        with pytest.raises(stoppable.RunStopped):
            async for number in handle.stream():
                received.append(number)
                if number == 1:
                    waiting.wait(60)  # it is past the check after its last item
                    await handle.stop("cooperative")
                    release.set()
        assert (received, ended) == ([0, 1, 2], [True])

    async def test_a_stop_lands_between_two_items_of_an_async_generator_that_never_waits(self):
        async def endless():
            while True:
                yield 1

        def press(run):
            while run.started_at is None:
                pass
            run.stop("cooperative")

        handle = await stoppable.spawn(endless)
        presser = threading.Thread(target=press, args=(handle.run,))
        presser.start()
        assert (await handle.outcome()).status == "stopped"
        presser.join(60)

    async def test_a_reader_that_leaves_does_not_stop_the_run(self):
        handle = await stoppable.spawn(numbers, 100)
        async for _ in handle.stream():
            break
        assert await handle.result() == "all of them"

    async def test_an_error_comes_after_what_it_yielded(self):
        def broken():
            yield 1
            raise ValueError("own")

        received = []
        with pytest.raises(stoppable.RunFailed, match="own"):
            async for number in (await stoppable.spawn(broken)).stream():
                received.append(number)
        assert received == [1]

    def test_blocking_code_streams_generators_of_both_kinds(self):
        async def async_numbers():
            for number in range(100):
                yield number

        for agent in (numbers, async_numbers):
            handle = sync.spawn(agent, *([100] if agent is numbers else []))
            assert list(handle.stream()) == list(range(100))
        assert sync.spawn(numbers, 3).result() == sync.call(numbers, 3) == "all of them"

    def test_blocking_code_stops_it_between_two_items(self):
        received = []
        handle = sync.spawn(numbers, 10**9)
        with pytest.raises(stoppable.RunStopped):
            for number in handle.stream():
                received.append(number)
                if number == 2:
                    handle.stop("cooperative")
        assert received[:3] == [0, 1, 2]
        assert ended == [True]

    def test_a_blocking_handle_of_a_plain_agent_has_no_stream(self):
        handle = sync.spawn(len, "x")
        with pytest.raises(stoppable.InvalidArgument, match="not a generator agent"):
            next(handle.stream())
        assert handle.result() == 1

    def test_a_script_gets_what_it_returns(self):
        assert stoppable.run(numbers, 3) == "all of them"

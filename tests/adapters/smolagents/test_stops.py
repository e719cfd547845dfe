"""Where a stop takes effect in agents of smolagents, and what their memory has afterwards."""

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest
from smolagents import (
    ChatMessage,
    ChatMessageStreamDelta,
    CodeAgent,
    InferenceClientModel,
    MessageRole,
    Model,
    RunResult,
    ToolCallingAgent,
)
from smolagents.utils import AgentGenerationError, RateLimiter, Retrying
from tests.adapters.scenarios.history import texts_of
from tests.waiting import until

import stoppable
from stoppable import Fate, Status
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT
from stoppable.errors import StoppableError
from stoppable.testing import ModelServer, Pause, Reply, ToolCall

from .world import (
    DEADLINE,
    DONE,
    Booking,
    ask_again,
    asking,
    caller,
    coder,
    heard_by,
    memory_of,
    stop,
    talk,
    writing,
)

# Tools


async def test_results_of_parallel_tools_are_kept_and_those_that_wait_for_a_thread_never_begin():
    booking = Booking("Rome", "Oslo")
    with ModelServer(asking("Rome", "Oslo", "Bern", "Bonn"), default=DONE) as server:
        agent = caller(server, booking, max_tool_threads=2)
        await stop(talk(agent), lambda: len(booking.begun) == 2, release=booking.release.set)
        assert sorted(booking.booked) == ["Oslo", "Rome"]
        await ask_again(server, agent)
    [(_, observed)] = [each for each in memory_of(agent) if each[1].startswith("Observation:") and "Rome" in each[1]]
    assert observed.splitlines()[1:] == [
        "Call id: call-Rome",
        "booked Rome",
        "Call id: call-Oslo",
        "booked Oslo",
        "Call id: call-Bern",
        NO_EFFECT,
        "Call id: call-Bonn",
        NO_EFFECT,
    ]


async def test_two_calls_with_the_same_arguments_are_two_calls():
    booking = Booking("Rome")
    twice = [ToolCall(name="book", arguments='{"city": "Rome"}', id=call_id) for call_id in ("call-1", "call-2")]
    with ModelServer(Reply(tool_calls=twice), default=DONE) as server:
        agent = caller(server, booking, max_tool_threads=1)
        await stop(talk(agent), lambda: booking.begun, release=booking.release.set)
        assert booking.booked == ["Rome"]
        await ask_again(server, agent)
    [observed] = [text for _, text in memory_of(agent) if "Call id: " in text]
    assert sorted(observed.splitlines()[2::2]) == sorted(["booked Rome", NO_EFFECT])


async def test_the_error_of_a_tool_that_fails_after_the_stop_is_in_the_memory():
    booking = Booking("Rome", "Oslo")
    failing = booking.forward

    def forward(city):
        failing(city)
        raise ValueError("no trains")

    booking.forward = forward
    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = caller(server, booking)
        await stop(talk(agent), lambda: booking.begun, release=booking.release.set)
        messages = await ask_again(server, agent)
    assert "no trains" in str(messages)


async def test_an_answer_that_is_final_is_handed_out_also_after_a_graceful_stop():
    pause = Pause()
    with ModelServer(Reply("I know.", tool_calls=DONE.tool_calls, pause=pause)) as server:
        agent = caller(server)
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(talk(agent))
            await server.wait_for_request_async()
            await until(lambda: handle.run.in_flight)
            await handle.stop()
            pause.end()
            outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == (Status.COMPLETED, "Done.")


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_an_agent_on_a_thread_of_an_async_body_is_waited_for_and_its_memory_is_complete(mode):
    booking = Booking("Rome")
    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = caller(server, booking)

        async def turn():
            return await asyncio.to_thread(talk(agent))

        _, receipt = await stop(turn, lambda: booking.begun, mode, booking.release.set)
        assert "tool:book" in receipt.in_flight
        assert (booking.booked, len(server.requests)) == (["Rome"], 1)
        assert memory_of(agent)[-1][1].endswith("booked Rome")
        await ask_again(server, agent)


async def test_a_turn_in_a_run_that_was_stopped_leaves_nothing_in_the_memory():
    with ModelServer(default=DONE) as server:
        agent = caller(server)

        def turn():
            stoppable.current_run().stop()
            talk(agent)()

        handle = await stoppable.spawn(turn)
        assert (await handle.outcome()).status is Status.STOPPED
        assert (server.requests, agent.memory.steps) == ([], [])


async def test_outside_a_run_nothing_changes():
    booking = Booking()
    with ModelServer(asking("Rome"), DONE, DONE) as server:
        agent = caller(server, booking)
        result = await asyncio.to_thread(talk(agent, return_full_result=True))
        assert (type(result), result.output, booking.booked) == (RunResult, "Done.", ["Rome"])
        for item in talk(agent, stream=True)():
            last = item
        assert last.output == "Done."


# Teams


@pytest.mark.parametrize("kind", [caller, coder])
async def test_the_memory_of_a_member_of_the_team_is_complete_as_well(kind):
    booking = Booking("Rome")
    with ModelServer(writing('booker(task="A trip.")'), asking("Rome")) as server:
        booker = caller(server, booking, name="booker", description="Books trips.")
        desk = coder(server, managed_agents=[booker])
        _, receipt = await stop(talk(desk), lambda: booking.begun, release=booking.release.set)
        assert {"tool:python_interpreter", "tool:booker", "tool:book"} <= set(receipt.in_flight)
    assert memory_of(booker)[-1] == ("tool-response", "Observation:\nbooked Rome")
    assert f"booker: {MAY_HAVE_TAKEN_EFFECT}" in memory_of(desk)[-1][1]


async def test_what_a_member_of_the_team_says_is_not_in_the_partial():
    pause = Pause()
    with ModelServer(writing('booker(task="A trip.")'), Reply("one two three", pause=pause)) as server:
        booker = caller(server, name="booker", description="Books trips.", stream_outputs=True)
        heard = heard_by(booker)
        desk = coder(server, managed_agents=[booker], stream_outputs=True)
        pause.release(2)
        handle, _ = await stop(talk(desk), lambda: "one" in heard, "immediate")
    assert "booker(" in str(handle.run.partial)
    assert "one" not in str(handle.run.partial)
    assert memory_of(booker)[-1][1].startswith("one")


# Code


@pytest.mark.parametrize("seconds", [None, DEADLINE])
@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_code_is_told_with_what_it_has_printed_and_the_tools_that_it_has_called(mode, seconds):
    booking = Booking("Oslo")
    code = 'print("off we go")\na = book(city="Rome")\nb = book("Oslo")\nc = book("Bern")\nfinal_answer(a + b + c)'
    again = writing('final_answer("Done.")')
    with ModelServer(writing(code), default=again) as server:
        agent = coder(server, booking, executor_kwargs={"timeout_seconds": seconds})
        handle, receipt = await stop(talk(agent), lambda: "Oslo" in booking.begun, mode, booking.release.set)
        assert {"tool:python_interpreter", "tool:book"} <= set(receipt.in_flight)
        assert booking.booked == ["Rome", "Oslo"]
        fates = {f"{each.kind}:{each.name}": each.fate for each in handle.run.receipt.entries}
        assert fates["tool:book"] is Fate.FINISHED
        await ask_again(server, agent)
    [observed] = [text for _, text in memory_of(agent) if "off we go" in text and text.startswith("Observation")]
    assert observed.splitlines() == [
        "Observation:",
        "Execution logs:",
        "off we go",
        "",
        MAY_HAVE_TAKEN_EFFECT,
        "The calls of tools that it made:",
        "book: booked Rome",
        "book: booked Oslo",
    ]


async def test_code_that_finishes_after_the_stop_has_its_usual_observation():
    booking = Booking("Rome")
    with ModelServer(writing('print(book("Rome"))'), default=writing('final_answer("Done.")')) as server:
        agent = coder(server, booking)
        await stop(talk(agent), lambda: booking.begun, release=booking.release.set)
        await ask_again(server, agent)
    assert "Observation:\nExecution logs:\nbooked Rome\nLast output from code snippet:\nNone" in memory_of(agent)[3][1]


async def test_code_of_an_answer_that_comes_after_the_stop_is_not_executed():
    booking, pause = Booking(), Pause()
    with ModelServer(writing('book("Rome")', pause=pause), default=writing('final_answer("Done.")')) as server:
        agent = coder(server, booking)
        await stop(talk(agent), lambda: server.requests, release=pause.end)
        assert booking.begun == []
        await ask_again(server, agent)
    assert memory_of(agent)[3] == ("tool-response", f"Observation:\n{NO_EFFECT}")


# Streams


def said_in(messages):
    return texts_of(messages, "assistant")


def until_text(items, text):
    """Read an agent until it has said something."""
    for item in items:
        if isinstance(item, ChatMessageStreamDelta) and text in (item.content or ""):
            return
    raise AssertionError(f"it never said {text}")


async def test_a_stream_may_be_left_and_continued():
    booking = Booking()
    with ModelServer(asking("Rome", text="one two three"), DONE) as server:
        agent = caller(server, booking, stream_outputs=True)

        def turn():
            items = talk(agent, stream=True)()
            until_text(items, "two")
            return list(items)[-1].output

        assert await (await stoppable.spawn(turn)).result() == "Done."
    assert booking.booked == ["Rome"]


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_stream_that_is_continued_after_the_stop_ends_with_it(mode):
    pause, read, stopped = Pause(), threading.Event(), threading.Event()
    with ModelServer(Reply("one two three four", pause=pause), default=DONE) as server:
        agent = caller(server, stream_outputs=True)

        def turn():
            items = talk(agent, stream=True)()
            until_text(items, "two")
            read.set()
            assert stopped.wait(DEADLINE)
            until_text(items, "four")

        pause.release(2)
        await stop(turn, read.is_set, mode, stopped.set)
        await server.wait_for_closed_async()
        messages = await ask_again(server, agent)
    assert said_in(messages) == ["one two"]


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_stream_that_is_never_continued_is_closed_with_the_run_and_its_text_is_kept(mode):
    pause, read, stopped = Pause(), threading.Event(), threading.Event()
    with ModelServer(Reply("one two three four", pause=pause), default=DONE) as server:
        agent = caller(server, stream_outputs=True)

        def turn():
            items = talk(agent, stream=True)()
            until_text(items, "two")
            read.set()
            assert stopped.wait(DEADLINE)
            stoppable.check()

        pause.release(2)
        await stop(turn, read.is_set, mode, stopped.set)
        await server.wait_for_closed_async()
        messages = await ask_again(server, agent)
    assert said_in(messages) == ["one two"]


async def test_a_reader_that_leaves_without_a_stop_gets_no_error():
    with ModelServer(Reply("one two three"), default=DONE) as server:
        agent = caller(server, stream_outputs=True)

        def turn():
            items = talk(agent, stream=True)()
            until_text(items, "two")
            items.close()  # plain smolagents: RuntimeError, generator ignored GeneratorExit

        assert (await (await stoppable.spawn(turn)).outcome()).status is Status.COMPLETED


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_the_next_turn_completes_the_memory_of_one_whose_stream_nobody_reads(mode):
    pause, read, stopped, kept = Pause(), threading.Event(), threading.Event(), []
    with ModelServer(Reply("one two three four", pause=pause), default=DONE) as server:
        agent = caller(server, stream_outputs=True)

        def turn():
            kept.append(talk(agent, stream=True)())
            until_text(kept[0], "two")
            read.set()
            assert stopped.wait(DEADLINE)
            stoppable.check()

        pause.release(2)
        await stop(turn, read.is_set, mode, stopped.set)
        await server.wait_for_closed_async()
        messages = await ask_again(server, agent)
    assert said_in(messages) == ["one two"]
    assert list(kept[0]) == []


async def test_a_stream_of_a_stopped_run_cannot_be_continued_elsewhere():
    pause, read, stopped, kept = Pause(), threading.Event(), threading.Event(), []
    with ModelServer(Reply("one two three four", pause=pause), default=DONE) as server:
        agent = caller(server, stream_outputs=True)

        def turn():
            kept.append(talk(agent, stream=True)())
            until_text(kept[0], "two")
            read.set()
            assert stopped.wait(DEADLINE)
            stoppable.check()

        pause.release(2)
        await stop(turn, read.is_set, release=stopped.set)
        with pytest.raises(StoppableError, match="the run that called it was stopped"):
            next(kept[0])
        assert len(server.requests) == 1
        assert memory_of(agent)[-1] == ("assistant", "one two")


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_body_that_passes_the_items_on_is_stopped_between_two(mode):
    pause = Pause()
    with ModelServer(Reply("one two three four", pause=pause), default=DONE) as server:
        agent = caller(server, stream_outputs=True)

        def turn():
            yield from (item.content for item in talk(agent, stream=True)() if hasattr(item, "content"))

        pause.release(2)
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            said = ""
            with contextlib.suppress(stoppable.RunStopped):
                async for text in handle.stream():
                    said += text or ""
                    if said == "one two":
                        await handle.stop(mode)
                        pause.release()
            assert (await handle.outcome()).status is Status.STOPPED
        await server.wait_for_closed_async()
        assert "four" not in said
        messages = await ask_again(server, agent)
    [kept] = said_in(messages)
    assert kept.startswith("one two")
    assert "four" not in kept


async def test_a_plan_that_was_cut_is_kept_as_far_as_it_had_come():
    pause = Pause()
    with ModelServer(Reply("first Rome then Oslo", pause=pause), default=DONE) as server:
        agent = caller(server, stream_outputs=True, planning_interval=1)
        heard = heard_by(agent)
        pause.release(2)
        await stop(talk(agent), lambda: "first" in heard, "immediate")
    [said] = [text for role, text in memory_of(agent) if role == "assistant"]
    assert said in ("first", "first Rome")  # the second may be on its way


async def test_a_plan_that_comes_after_the_stop_is_kept():
    pause = Pause()
    with ModelServer(Reply("first Rome then Oslo", pause=pause), default=DONE) as server:
        agent = caller(server, planning_interval=1)

        def turn():
            yield from talk(agent, stream=True)()

        await stop(turn, lambda: server.requests, release=pause.end)
        assert len(server.requests) == 1
    assert [type(step).__name__ for step in agent.memory.steps] == ["TaskStep", "PlanningStep"]
    assert "first Rome then Oslo" in agent.memory.steps[-1].plan


async def test_the_partial_has_an_empty_line_between_two_answers():
    with ModelServer(asking("Rome", text="one two"), Reply("three", tool_calls=DONE.tool_calls)) as server:
        agent = caller(server, Booking(), stream_outputs=True)
        handle = await stoppable.spawn(talk(agent))
        assert await handle.result() == "Done."
    assert handle.run.partial == "one two\n\nthree"


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_client_of_hugging_face_is_cut_as_well(mode, is_streamed):
    pause = Pause()
    with ModelServer(Reply("one two three four", pause=pause), default=DONE) as server:
        model = InferenceClientModel(model_id=f"{server.url}/chat/completions", token="none")
        agent = ToolCallingAgent(tools=[], model=model, verbosity_level=0, stream_outputs=is_streamed)
        heard = heard_by(agent)
        pause.release(2)
        await stop(
            talk(agent),
            lambda: "two" in " ".join(filter(None, heard)) if is_streamed else server.requests,
            mode,
            {"immediate": lambda: None, "graceful": pause.release if is_streamed else pause.end}[mode],
            AgentGenerationError,  # of requests, which older versions use: the answer that was cut ended too early
        )
        if is_streamed or mode == "immediate":  # the client keeps the connection of an answer that finished
            await server.wait_for_closed_async()
        assert len(server.requests) == 1
        said = [text for role, text in memory_of(agent) if role == "assistant"]
        if is_streamed:
            assert said in (["one two"], ["one two three"])  # what had come when it was closed
        else:
            # huggingface_hub 2 reads every answer in pieces, between which a graceful stop closes it.
            assert said in ([], *([["one two three four"]] if mode == "graceful" else []))


async def test_nothing_of_an_agent_is_kept_after_its_turn():
    with ModelServer(default=DONE) as server:
        agent = caller(server)
        kept = weakref.ref(agent)
        assert await (await stoppable.spawn(talk(agent))).result() == "Done."
        del agent
        await until(lambda: gc.collect() is not None and kept() is None)


# Models that are no requests, and waits


class Local(Model):
    """A model in this process, which is asked in the middle of an answer whether it may go on."""

    def __init__(self, *answers):
        super().__init__(model_id="local")
        self.answers = list(answers)
        self.asked, self.may_go_on = threading.Event(), threading.Event()

    def generate(self, messages, **options):
        self.asked.set()
        assert self.may_go_on.wait(DEADLINE)
        return ChatMessage(role=MessageRole.ASSISTANT, content=self.answers.pop(0))

    def generate_stream(self, messages, **options):
        for word in self.answers.pop(0).split():
            yield ChatMessageStreamDelta(content=f"{word} ")
            self.asked.set()
            assert self.may_go_on.wait(DEADLINE)


class Polite(Local):
    """Calls the methods of its base class."""

    def generate(self, messages, **options):
        return super().generate(messages, **options)

    def generate_stream(self, messages, **options):
        yield from super().generate_stream(messages, **options)


def local_agent(model, **options):
    return CodeAgent(tools=[], model=model, verbosity_level=0, **options)


@pytest.mark.parametrize("kind", [Local, Polite])
async def test_a_model_in_this_process_is_one_boundary_and_its_answer_is_kept(kind):
    model = kind("I think.")
    agent = local_agent(model)
    handle, receipt = await stop(talk(agent), model.asked.is_set, release=model.may_go_on.set)
    assert receipt.in_flight == ("llm:local",)
    [fate] = [each.fate for each in handle.run.receipt.entries if each.kind == "llm"]
    assert fate is Fate.FINISHED
    assert memory_of(agent)[1][1].startswith("I think.")


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("kind", [Local, Polite])
async def test_the_stream_of_a_model_in_this_process_ends_between_two_pieces(kind, mode):
    model = kind("one two three")
    agent = local_agent(model, stream_outputs=True)
    handle, receipt = await stop(talk(agent), model.asked.is_set, mode, model.may_go_on.set)
    assert receipt.in_flight == ("llm:local",)
    [fate] = [each.fate for each in handle.run.receipt.entries if each.kind == "llm"]
    assert fate in {Fate.CLOSED, Fate.INTERRUPTED}
    assert (str(handle.run.partial), memory_of(agent)[-1]) == ("one two ", ("assistant", "one two"))


@pytest.mark.parametrize("reason", ["enough", "429 too many requests: rate limit"])
async def test_a_wait_for_the_rate_limit_ends_with_the_stop(reason):
    waiting = threading.Event()

    def refused():
        waiting.set()
        raise RuntimeError("429")

    def turn():
        Retrying(max_attempts=9, wait_seconds=DEADLINE, retry_predicate=lambda error: "429" in str(error))(refused)

    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(turn)
        await until(waiting.is_set)
        await handle.stop(reason=reason)
        assert (await handle.outcome()).status is Status.STOPPED


async def test_a_wait_between_two_requests_ends_with_the_stop():
    limiter = RateLimiter(requests_per_minute=60 / DEADLINE)
    limiter.throttle()
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(limiter.throttle)
        await handle.stop()
        assert (await handle.outcome()).status is Status.STOPPED

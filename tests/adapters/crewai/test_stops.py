"""Where a stop takes effect in crews, agents and flows of CrewAI, and what is known of them afterwards."""

import asyncio
import gc
import threading

import pytest
from crewai import BaseLLM, Task
from crewai.events.event_bus import CrewAIEventsBus
from crewai.events.event_listener import event_listener
from crewai.events.types.llm_events import LLMCallCompletedEvent
from crewai.flow.flow import Flow, listen, start
from crewai.tools import tool
from crewai.utilities.rpm_controller import RPMController
from tests.waiting import until

import stoppable
from stoppable import Fate, Status
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT
from stoppable.agent_check.observations import outside_effects
from stoppable.testing import ModelServer, Pause, Reply, ToolCall

from .world import DEADLINE, DONE, PATIENT, Booking, asking, booker, crew_of, model, said_in, stop

# Tools


async def test_results_of_parallel_tools_are_kept_and_those_that_have_not_begun_never_do():
    booking = Booking("Rome", "Oslo")
    cities = ("Rome", "Oslo", *(f"City {number}" for number in range(8)))  # CrewAI has eight threads
    held = Booking(*cities)
    with ModelServer(asking(*cities), default=DONE) as server:
        agent = booker(model(server), held)
        await stop(crew_of(agent).kickoff, lambda: len(held.begun) == 8, release=held.release)
    assert booking.booked == []
    assert len(held.booked) == 8
    answers = [text for role, text in said_in(agent.last_messages) if role == "tool"]
    assert sorted(answers) == sorted([*(f"booked {city}" for city in held.booked), NO_EFFECT, NO_EFFECT])


async def test_the_error_of_a_tool_that_fails_after_the_stop_is_in_the_messages():
    booking, plain = Booking("Rome"), Booking._run

    class Failing(Booking):
        def _run(self, city: str) -> str:
            plain(self, city)
            raise ValueError("no trains")

    booking = Failing("Rome")
    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = booker(model(server), booking)
        await stop(crew_of(agent).kickoff, lambda: booking.begun, release=booking.release)
    assert said_in(agent.last_messages)[-1] == ("tool", "Error executing tool: no trains")


async def test_a_tool_that_a_stop_has_cut_may_have_taken_effect():
    waiting = threading.Event()

    @tool("book")
    async def book(city: str) -> str:
        """Book a trip."""
        waiting.set()
        await asyncio.sleep(DEADLINE)
        return city

    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = booker(model(server), book)
        handle, receipt = await stop(crew_of(agent).kickoff, waiting.is_set, "immediate")
    assert "tool:book" in receipt.in_flight
    assert [each.fate for each in handle.run.receipt.entries if each.kind == "tool"] == [Fate.CANCELLED]
    assert said_in(agent.last_messages)[-1] == ("tool", MAY_HAVE_TAKEN_EFFECT)


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_coworker_is_stopped_like_the_agent_that_has_left_the_work_to_it(mode):
    booking = Booking("Rome")
    work = '{"task": "Book a trip to Rome.", "context": "None.", "coworker": "booker"}'
    leave = Reply(tool_calls=[ToolCall(name="delegate_work_to_coworker", arguments=work, id="call-leave")])
    with ModelServer(leave, asking("Rome"), default=DONE) as server:
        llm = model(server)
        boss = booker(llm, role="boss", allow_delegation=True)
        worker = booker(llm, booking)
        _, receipt = await stop(crew_of(boss, worker).kickoff, lambda: booking.begun, mode, booking.release)
        assert len(server.requests) == 2
    assert {"tool:book", "tool:Delegate work to coworker"} <= set(receipt.in_flight)
    assert booking.booked == ["Rome"]
    assert said_in(worker.last_messages)[-1] == ("tool", "booked Rome")
    assert said_in(boss.last_messages)[-1] == ("tool", MAY_HAVE_TAKEN_EFFECT)


async def test_the_text_of_a_coworker_is_no_answer():
    leave = ToolCall(
        name="delegate_work_to_coworker", arguments='{"task": "Count.", "context": "", "coworker": "booker"}', id="1"
    )
    script = Reply("one", tool_calls=[leave]), Reply("two three"), Reply("four five")
    with ModelServer(*script) as server:
        llm = model(server, stream=True)
        boss = booker(llm, role="boss", allow_delegation=True)
        handle = await stoppable.spawn(crew_of(boss, booker(llm)).kickoff, policy=PATIENT)
        assert (await handle.result()).raw == "four five"
    assert handle.run.partial == "one\n\nfour five"


# Actions, which a model without native calls writes as text


class Writing(BaseLLM):
    """A model in this process that is asked in the middle of an answer whether it may go on."""

    def __init__(self, *answers):
        super().__init__(model="local")
        self._answers = list(answers)
        self._asked, self._may_go_on = threading.Event(), threading.Event()

    @property
    def is_asked(self):
        return self._asked.is_set

    @property
    def go_on(self):
        return self._may_go_on.set

    def call(self, messages, tools=None, callbacks=None, available_functions=None, **options):
        self._asked.set()
        assert self._may_go_on.wait(DEADLINE)
        return self._answers.pop(0)

    def supports_function_calling(self):
        return False


class Polite(Writing):
    """Calls the method of its base class."""

    def call(self, *args, **kwargs):
        return super().call(*args, **kwargs)


ACTION = 'Thought: I book.\nAction: book\nAction Input: {"city": "Rome"}'


@pytest.mark.parametrize("kind", [Writing, Polite])
async def test_a_model_in_this_process_is_one_boundary_and_its_answer_is_kept(kind):
    llm = kind(ACTION)
    agent = booker(llm, Booking())
    handle, receipt = await stop(crew_of(agent).kickoff, llm.is_asked, release=llm.go_on)
    assert [label for label in receipt.in_flight if label.startswith("llm:")] == ["llm:local"]
    [fate] = [each.fate for each in handle.run.receipt.entries if each.kind == "llm"]
    assert fate is Fate.FINISHED
    assert agent.last_messages[-1] == {"role": "assistant", "content": f"{ACTION}\nObservation: {NO_EFFECT}"}


async def test_an_action_that_was_in_flight_is_kept_with_its_result():
    llm, booking = Writing(ACTION), Booking("Rome")
    llm.go_on()
    agent = booker(llm, booking)
    _, receipt = await stop(crew_of(agent).kickoff, lambda: booking.begun, release=booking.release)
    assert "tool:book" in receipt.in_flight
    [said] = [each["content"] for each in agent.last_messages if each["role"] == "assistant"]
    assert said == f"{ACTION}\nObservation: booked Rome"


# Crews


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_crew_that_waits_for_a_task_in_a_thread_ends_with_it(mode):
    booking = Booking("Rome")
    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = booker(model(server), booking)
        tasks = [
            Task(description="A trip, please.", expected_output="A sentence.", agent=agent, async_execution=True),
            Task(description="Thank you.", expected_output="A sentence.", agent=booker(model(server))),
        ]
        crew = crew_of(agent, tasks=tasks)
        pause = lambda: booking.begun and len(server.requests) >= 1  # noqa: E731
        await stop(crew.kickoff, pause, mode, booking.release)
    assert booking.booked == ["Rome"]


async def test_the_tasks_after_a_stop_never_begin_and_the_one_before_has_its_output():
    booking = Booking("Rome")
    with ModelServer(Reply("First."), asking("Rome"), default=DONE) as server:
        first, second = booker(model(server)), booker(model(server), booking)
        tasks = [
            Task(description=f"Task {number}.", expected_output="A sentence.", agent=agent)
            for number, agent in enumerate((first, second, first))
        ]
        await stop(crew_of(first, second, tasks=tasks).kickoff, lambda: booking.begun, release=booking.release)
        assert len(server.requests) == 2
    assert [task.output and task.output.raw for task in tasks] == ["First.", None, None]


async def test_crews_for_each_input_are_all_stopped():
    booking = Booking("Rome", "Oslo")
    with ModelServer(asking("Rome"), asking("Oslo"), default=DONE) as server:
        crew = crew_of(booker(model(server), booking), description="A trip to {city}.")

        async def body():
            await crew.akickoff_for_each([{"city": "Rome"}, {"city": "Oslo"}])

        await stop(body, lambda: len(booking.begun) == 2, release=booking.release)
        assert len(server.requests) == 2
    assert sorted(booking.booked) == ["Oslo", "Rome"]


async def test_outside_a_run_nothing_changes():
    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = booker(model(server), Booking())
        assert (await asyncio.to_thread(crew_of(agent).kickoff)).raw == "Done."
        assert (await asyncio.to_thread(agent.kickoff, "Hello?")).raw == "Done."


async def test_the_record_that_crews_keep_of_their_tasks_is_no_effect_of_a_stopped_run():
    is_watched = threading.Event()
    crew_of(booker(Writing()))  # what is imported with the first one is no part of this

    def body():
        assert is_watched.wait(DEADLINE)
        stoppable.current_run().stop()
        crew = crew_of(booker(Writing()))
        crew._task_output_handler.reset()

    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(body, policy=PATIENT)
        with outside_effects(handle.run) as effects:
            is_watched.set()
            await handle.outcome()
    assert effects.after == {}


# Streams


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_the_reader_of_a_stream_learns_of_the_stop(mode):
    pause, read, over = Pause(), [], []
    with ModelServer(Reply("one two three four", pause=pause)) as server:
        crew = crew_of(booker(model(server)), stream=True)

        def body():
            for chunk in crew.kickoff():
                read.append(chunk.content)
            over.append(crew)  # plain CrewAI ends the stream as if it were complete

        pause.release(2)
        await stop(body, lambda: "two" in "".join(read), mode, pause.release)
        await server.wait_for_closed_async(within=DEADLINE)
    assert over == []
    assert crew.stream is True


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_the_reader_of_the_frames_of_a_flow_learns_of_the_stop(mode):
    pause, read, over = Pause(), [], []

    class Counting(Flow):
        @start()
        def count(self):
            return booker(model(server, stream=True)).kickoff("Count.").raw

    with ModelServer(Reply("one two three four", pause=pause)) as server:
        flow = Counting()

        def body():
            for frame in flow.stream_events():
                read.append(frame.content)
            over.append(flow)

        pause.release(2)
        await stop(body, lambda: "two" in "".join(read), mode, pause.release)
        await server.wait_for_closed_async(within=DEADLINE)
    assert over == []


async def test_nothing_shows_text_that_arrives_while_the_wait_for_it_is_cut(monkeypatch):
    formatter, arrived, is_cut = event_listener.formatter, threading.Event(), threading.Event()
    show = formatter.handle_llm_stream_chunk

    def show_late(*args, **kwargs):
        arrived.set()
        assert is_cut.wait(DEADLINE)
        show(*args, **kwargs)

    monkeypatch.setattr(formatter, "handle_llm_stream_chunk", show_late)
    pause = Pause()
    with ModelServer(Reply("one two", pause=pause)) as server:
        agent = booker(model(server))
        crew = crew_of(agent, stream=True, verbose=True)

        async def body():
            async for _ in await crew.akickoff():
                pass

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(body, policy=PATIENT)
            pause.release()
            await until(arrived.is_set, DEADLINE)
            await handle.stop("immediate")
            await until(lambda: agent.last_messages, DEADLINE)  # the thread of the model works on
            is_cut.set()
            assert (await handle.outcome()).status is Status.STOPPED
    assert formatter._streaming_live is None  # it would have a thread


async def test_a_stop_that_comes_while_listeners_are_told_of_an_answer_does_not_lose_it(monkeypatch):
    prepare = CrewAIEventsBus._prepare_event

    def stop_and_prepare(self, source, event):
        if isinstance(event, LLMCallCompletedEvent):
            stoppable.current_run().stop()
        prepare(self, source, event)

    monkeypatch.setattr(CrewAIEventsBus, "_prepare_event", stop_and_prepare)
    with ModelServer(Reply("Take the 9:30.")) as server:
        agent = booker(model(server))
        async with asyncio.timeout(DEADLINE):
            await (await stoppable.spawn(crew_of(agent).kickoff, policy=PATIENT)).outcome()
    assert agent.last_messages[-1] == {"role": "assistant", "content": "Take the 9:30."}


async def test_a_reader_that_leaves_without_a_stop_gets_no_error():
    with ModelServer(Reply("one two three")) as server:
        crew = crew_of(booker(model(server)), stream=True)

        async def body():
            async for _ in await crew.akickoff():
                return "left"

        assert await (await stoppable.spawn(body)).result() == "left"


# Flows


class Trip(Flow):
    """Two methods at once, and one after both; those in ``held`` wait."""

    def __init__(self, *held):
        super().__init__()
        self._held, self._begun, self._ended = held, [], []
        self._pause, self._release = Pause(), threading.Event()

    @start()
    async def book(self):
        self._begun.append("book")
        if "book" in self._held:
            await self._pause.wait()
        self._ended.append("book")

    @start()
    def look_up(self):
        self._begun.append("look_up")
        if "look_up" in self._held:
            assert self._release.wait(DEADLINE)
        self._ended.append("look_up")

    @listen(book)
    def pay(self):
        self._begun.append("pay")


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_no_method_of_a_flow_begins_after_a_stop(mode, is_async):
    flow = Trip("book", "look_up")
    body = flow.kickoff_async if is_async else flow.kickoff

    def release():
        flow._pause.end()
        flow._release.set()

    _, receipt = await stop(body, lambda: len(flow._begun) == 2, mode, release)
    assert {"node:Trip.book", "node:Trip.look_up"} <= set(receipt.in_flight)
    assert sorted(flow._begun) == ["book", "look_up"]
    assert sorted(flow._ended) == (["book", "look_up"] if mode == "graceful" else sorted({"look_up", *flow._ended}))


async def test_a_method_that_ends_first_does_not_cut_the_other_during_the_grace():
    flow = Trip("book", "look_up")
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(flow.kickoff, policy=PATIENT)
        await until(lambda: len(flow._begun) == 2, DEADLINE)
        await handle.stop()
        flow._release.set()
        await until(lambda: "look_up" in flow._ended, DEADLINE)
        flow._pause.end()
        assert (await handle.outcome()).status is Status.STOPPED
    assert sorted(flow._ended) == ["book", "look_up"]


async def test_an_agent_in_a_flow_is_stopped():
    booking = Booking("Rome")

    class Booker(Flow):
        @start()
        async def book(self):
            return (await booker(model(server), booking).kickoff_async("A trip.")).raw

    with ModelServer(asking("Rome"), default=DONE) as server:
        _, receipt = await stop(Booker().kickoff_async, lambda: booking.begun, release=booking.release)
        assert len(server.requests) == 1
    assert {"node:Booker.book", "tool:book"} <= set(receipt.in_flight)


# Waits, and threads that live on


async def test_a_wait_for_the_rate_limit_of_a_crew_ends_with_the_stop():
    waiting = threading.Event()

    def body():
        limit = RPMController(max_rpm=1)
        try:
            limit.check_or_wait()
            waiting.set()
            limit.check_or_wait()
        finally:
            limit.stop_rpm_counter()

    await stop(body, waiting.is_set)


async def test_a_wait_for_a_provider_ends_with_the_stop():
    retry = pytest.importorskip("crewai.llms.retry")
    refused = threading.Event()

    class TooMany(Exception):
        status_code = 429

    def call():
        refused.set()
        raise TooMany

    async def call_async():
        call()

    await stop(lambda: retry.run_with_rate_limit_retry(call), refused.is_set)
    refused.clear()

    async def ask():
        await retry.arun_with_rate_limit_retry(call_async)

    await stop(ask, refused.is_set)


async def test_the_timer_of_a_rate_limit_does_not_keep_a_run():
    with ModelServer(default=DONE) as server:

        def body():
            return crew_of(booker(model(server)), max_rpm=100).kickoff().raw

        async with asyncio.timeout(DEADLINE):
            assert await (await stoppable.spawn(body)).result() == "Done."
    for each in gc.get_objects():
        if isinstance(each, RPMController):  # CrewAI makes more than one, and forgets the others
            each.stop_rpm_counter()

"""Where a stop takes effect in an agent of Pydantic AI, and what the next turn gets to read."""

from __future__ import annotations

import asyncio

import pytest
from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, DeferredToolResults, ModelRetry, Tool
from pydantic_ai.capabilities import AbstractCapability

import stoppable
from stoppable import Fate, Status
from stoppable.adapters.pydantic_ai import Stoppable, history_of, instrument
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT
from stoppable.testing import Pause, Reply

from .world import calls, until, world


def fates(receipt):
    return {f"{entry.kind}:{entry.name}": entry.fate for entry in receipt.entries if entry.kind != "run"}


async def next_turn(w, run):
    """Return the messages that the model gets in the turn after a run."""
    result = await w.agent(w.book, w.pay, w.ask).run("and now?", message_history=history_of(run))
    assert result.output == "done"
    return w.messages()


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_sync_tool_is_waited_for_on_its_thread(mode):
    async with world(calls("pay")) as w:
        run = await stoppable.spawn(w.agent(w.pay, capabilities=[Stoppable()]).run, "pay")
        await until(lambda: w.begun)
        receipt = await run.stop(mode)
        assert "tool:pay" in receipt.in_flight
        w.release.set()
        outcome = await run.outcome()
        assert (outcome.status, w.effects) == (Status.STOPPED, ["pay"])
        question, call, answer, _ = await next_turn(w, run.run)
        assert (question, call) == ("u pay", "A ['pay']")
        # The thread may end before the cancel of an immediate stop arrives.
        assert answer in {"t pay: paid", *([f"t pay: {MAY_HAVE_TAKEN_EFFECT}"] if mode == "immediate" else [])}


async def test_a_graceful_stop_keeps_the_results_of_all_parallel_tools_and_asks_the_model_no_more():
    async with world(calls("book", "pay", "ask")) as w:
        run = await stoppable.spawn(w.agent(w.book, w.pay, w.ask, capabilities=[Stoppable()]).run, "all")
        await until(lambda: {*w.begun, *w.effects} >= {"book", "pay", "ask"})
        await run.stop()
        w.release.set()
        assert (await run.outcome()).status == Status.STOPPED
        assert len(w.server.requests) == 1
        assert await next_turn(w, run.run) == [
            "u all",
            "A ['book', 'pay', 'ask']",
            "t book: booked",
            "t pay: paid",
            "t ask: asked",
            "u and now?",
        ]


async def test_an_immediate_stop_keeps_what_has_finished_and_says_what_may_have_happened():
    async with world(calls("book", "ask")) as w:
        run = await stoppable.spawn(w.agent(w.book, w.ask, capabilities=[Stoppable()]).run, "both")
        await until(lambda: w.begun and w.effects)
        await run.stop("immediate")
        assert (await run.outcome()).status == Status.STOPPED
        assert fates(await run.receipt())["tool:book"] is Fate.CANCELLED
        messages = await next_turn(w, run.run)
        assert sorted(messages[2:4]) == sorted([f"t book: {MAY_HAVE_TAKEN_EFFECT}", "t ask: asked"])


async def test_a_tool_that_the_model_asked_for_after_the_stop_never_begins():
    pause = Pause()
    async with world(Reply([""], tool_calls=calls("book").tool_calls, pause=pause)) as w:  # a token that it waits with
        run = await stoppable.spawn(w.agent(w.book, capabilities=[Stoppable()]).run, "book")
        await until(lambda: w.server.requests)
        assert (await run.stop()).in_flight == ("llm:scripted",)
        pause.end()
        assert (await run.outcome()).status == Status.STOPPED
        assert w.begun == []
        assert await next_turn(w, run.run) == ["u book", "A ['book']", f"t book: {NO_EFFECT}", "u and now?"]


async def read_text(agent):
    async with agent.run_stream("tell") as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            pass


async def read_events(agent):
    async with agent.run_stream_events("tell") as events:
        async for _ in events:
            pass


async def read_nodes(agent):
    async with agent.iter("tell") as nodes:
        async for node in nodes:
            if Agent.is_model_request_node(node):
                async with node.stream(nodes.ctx) as events:
                    async for _ in events:
                        pass


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("read", [read_text, read_events, read_nodes])
async def test_a_stream_ends_between_two_events_and_its_text_is_kept(read, mode):
    pause = Pause()
    async with world(Reply("one two three four", pause=pause)) as w:
        run = await stoppable.spawn(read, w.agent(capabilities=[Stoppable()]))
        pause.release(2)
        await until(lambda: run.run.partial)
        await until(lambda: "two" in str(run.run.partial))
        receipt = await run.stop(mode)
        assert receipt.in_flight == ("llm:scripted",)
        pause.release()
        outcome = await run.outcome()
        assert outcome.status == Status.STOPPED
        assert "four" not in outcome.partial
        by_force = {Fate.INTERRUPTED, Fate.CANCELLED} if mode == "immediate" else set()
        assert fates(await run.receipt())["llm:scripted"] in {Fate.CLOSED, *by_force}
        pause.end()
        assert await next_turn(w, run.run) == ["u tell", f"A {outcome.partial}", "u and now?"]


async def test_a_blocking_agent_is_stopped_on_its_thread():
    async with world(calls("book")) as w:

        def ask():
            with asyncio.Runner() as runner:  # otherwise the loop that Pydantic AI makes is never closed
                asyncio.set_event_loop(runner.get_loop())
                try:
                    w.agent(w.book, capabilities=[Stoppable()]).run_sync("book")
                finally:
                    runner.run(w.client.close())

        run = await stoppable.spawn(ask)
        await until(lambda: w.begun)
        await run.stop("immediate")
        assert ((await run.outcome()).status, w.effects) == (Status.STOPPED, [])
        assert "may have taken effect" in str(history_of(run.run)[-1])


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_an_agent_below_a_tool_is_stopped_with_it_and_is_no_part_of_the_conversation(mode):
    async with world(calls("helper"), calls("book", text="thinking")) as w:
        below = w.agent(w.book, capabilities=[Stoppable()])

        async def helper() -> str:
            return str((await below.run("book it")).output)

        run = await stoppable.spawn(w.agent(helper, capabilities=[Stoppable()]).run, "help")
        await until(lambda: w.begun)
        assert set((await run.stop(mode)).in_flight) == {"tool:helper", "tool:book"}
        w.release.set()
        outcome = await run.outcome()
        assert (outcome.status, outcome.partial, len(w.server.requests)) == (Status.STOPPED, None, 2)
        messages = await next_turn(w, run.run)
        assert messages == ["u help", "A ['helper']", f"t helper: {MAY_HAVE_TAKEN_EFFECT}", "u and now?"]


async def test_instrument_reaches_agents_that_do_not_have_it(monkeypatch):
    monkeypatch.setattr(Agent, "iter", Agent.iter)  # what is patched is put back
    instrument()
    instrument()
    async with world(calls("book")) as w:
        run = await stoppable.spawn(w.agent(w.book).run, "book")
        await until(lambda: w.begun)
        assert (await run.stop("immediate")).in_flight == ("tool:book",)
        assert (await run.outcome()).status == Status.STOPPED
        assert history_of(run.run)
        assert (await w.agent(w.ask).run("plain")).output == "done"  # outside a run


async def test_an_agent_that_has_it_twice_enters_each_boundary_once(monkeypatch):
    monkeypatch.setattr(Agent, "iter", Agent.iter)
    instrument()
    async with world(calls("book")) as w:
        run = await stoppable.spawn(w.agent(w.book, capabilities=[Stoppable()]).run, "book")
        await until(lambda: w.begun)
        assert (await run.stop()).in_flight == ("tool:book",)
        w.release.set()
        assert (await run.outcome()).status == Status.STOPPED


async def test_outside_a_run_it_does_nothing():
    async with world(calls("ask")) as w:
        result = await w.agent(w.ask, capabilities=[Stoppable()]).run("ask")
        assert (result.output, w.effects) == ("done", ["ask"])


async def test_a_tool_that_asks_for_a_retry_gets_one():
    tries = []

    async def shy() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ModelRetry("again")
        return "yes"

    async with world(calls("shy"), calls("shy")) as w:
        run = await stoppable.spawn(w.agent(shy, capabilities=[Stoppable()]).run, "try")
        assert ((await run.outcome()).status, len(tries)) == (Status.COMPLETED, 2)


async def test_a_run_that_completed_has_the_history_of_its_result():
    async with world(calls("ask")) as w:
        run = await stoppable.spawn(w.agent(w.ask, capabilities=[Stoppable()]).run, "ask")
        result = await run.result()
        assert history_of(run.run) == result.all_messages()


async def test_a_run_that_called_no_agent_has_the_history_that_is_given():
    async def nothing():
        pass

    run = await stoppable.spawn(nothing)
    await run.outcome()
    assert history_of(run.run) == []
    assert history_of(run.run, ["before"]) == ["before"]


# Deferred tools


async def approval_needed() -> str:
    raise ApprovalRequired


async def test_calls_that_wait_for_an_approval_stay_open_after_a_run_that_completed():
    async with world(calls("approval_needed")) as w:
        agent = w.agent(Tool(approval_needed), output_type=[str, DeferredToolRequests], capabilities=[Stoppable()])
        run = await stoppable.spawn(agent.run, "approve")
        result = await run.result()
        assert [call.tool_call_id for call in result.output.approvals] == ["approval_needed"]
        assert history_of(run.run) == result.all_messages()


async def test_a_call_that_waits_for_an_approval_had_no_effect_when_the_turn_is_stopped():
    async with world(calls("approval_needed", "book")) as w:
        agent = w.agent(
            Tool(approval_needed), w.book, output_type=[str, DeferredToolRequests], capabilities=[Stoppable()]
        )
        run = await stoppable.spawn(agent.run, "both")
        await until(lambda: w.begun)
        await run.stop("immediate")
        assert (await run.outcome()).status == Status.STOPPED
        messages = await next_turn(w, run.run)
        assert sorted(messages[2:4]) == sorted([f"t approval_needed: {NO_EFFECT}", f"t book: {MAY_HAVE_TAKEN_EFFECT}"])


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_stop_while_approved_calls_are_executed_keeps_what_is_known_of_each(mode):
    async with world(calls("book", "fetch")) as w:
        agent = w.agent(
            Tool(w.book, requires_approval=True),
            Tool(w.ask, name="fetch", requires_approval=True),
            output_type=[str, DeferredToolRequests],
            capabilities=[Stoppable()],
        )
        asked = await agent.run("both")
        results = DeferredToolResults(approvals={"book": True, "fetch": True})
        run = await stoppable.spawn(agent.run, message_history=asked.all_messages(), deferred_tool_results=results)
        await until(lambda: w.begun and w.effects)
        await run.stop(mode)
        if mode == "graceful":
            w.release.set()
        assert (await run.outcome()).status == Status.STOPPED
        book = "booked" if mode == "graceful" else MAY_HAVE_TAKEN_EFFECT
        messages = await next_turn(w, run.run)
        assert sorted(messages[2:4]) == sorted([f"t book: {book}", "t fetch: asked"])


async def test_results_that_the_user_brought_are_kept_if_the_turn_is_stopped():
    async with world(calls("approval_needed", "book")) as w:
        agent = w.agent(
            Tool(approval_needed),
            Tool(w.book, requires_approval=True),
            output_type=[str, DeferredToolRequests],
            capabilities=[Stoppable()],
        )
        asked = await agent.run("both")
        results = DeferredToolResults(approvals={"book": True}, calls={"approval_needed": "42"})
        run = await stoppable.spawn(agent.run, message_history=asked.all_messages(), deferred_tool_results=results)
        await until(lambda: w.begun)
        await run.stop("immediate")
        assert (await run.outcome()).status == Status.STOPPED
        messages = await next_turn(w, run.run)
        assert sorted(messages[2:4]) == sorted(["t approval_needed: 42", f"t book: {MAY_HAVE_TAKEN_EFFECT}"])


# Other capabilities


class Recorder(AbstractCapability):
    """Notes what it sees of the model."""

    def __init__(self):
        self.models = []

    async def after_model_request(self, ctx, *, request_context, response):
        self.models.append(request_context.model.model_name)
        return response


async def test_another_capability_sees_the_model_under_its_own_name():
    recorder = Recorder()
    async with world() as w:
        run = await stoppable.spawn(w.agent(capabilities=[recorder, Stoppable()]).run, "hello")
        assert (await run.result()).output == "done"
        assert recorder.models == ["scripted"]


async def test_two_runs_of_one_agent_do_not_meet():
    async with world(calls("book"), calls("book")) as w:
        agent = w.agent(w.book, capabilities=[Stoppable()])
        ann, bob = [await stoppable.spawn(agent.run, name) for name in ("ann", "bob")]
        await until(lambda: len(w.begun) == 2)
        await ann.stop("immediate")
        assert (await ann.outcome()).status == Status.STOPPED
        w.release.set()
        assert (await bob.result()).output == "done"
        assert "ann" in str(history_of(ann.run)[0])
        assert "bob" in str(history_of(bob.run)[0])

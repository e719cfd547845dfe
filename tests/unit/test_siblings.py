"""A branch that meets the stop cuts no call that another branch of its run has in flight, while the grace lasts."""

import asyncio

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine import waits


class Client:
    """Makes paid calls, each of which lasts until it is answered; closed with one in flight, it cuts it."""

    def __init__(self):
        self.entered = asyncio.Event()
        self.answered = asyncio.Event()
        self.answers = []
        self.is_closed = False

    async def create(self):
        self.entered.set()
        await self.answered.wait()
        self.answers.append("cut" if self.is_closed else "answer")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.is_closed = True


@stoppable.boundary("tool", "next")
async def decorated():
    pass


class Guarded:
    async def search(self):
        pass

    def find(self):
        return self.search()


async def numbers():
    for number in range(1000):
        yield number
        await asyncio.sleep(0)


async def meets_with_a_block():
    async with stoppable.boundary("tool", "next"):
        pass


async def meets_with_a_decorator():
    await decorated()


async def meets_with_a_guard():
    await stoppable.guard(Guarded(), "tool", "search").search()


async def meets_with_a_coroutine_of_a_guard():
    await _made_before_the_stop(stoppable.guard(Guarded(), "tool", "find").find())


async def meets_with_a_coroutine_of_a_decorator():
    await _made_before_the_stop(stoppable.boundary("tool", "next")(Guarded().find)())


async def _made_before_the_stop(coroutine):
    while not stoppable.current_run().token.stopped:
        await asyncio.sleep(0.001)
    await coroutine


async def meets_asleep():
    await stoppable.sleep(0)


async def meets_at_a_thread():
    await stoppable.to_thread(int)


async def meets_on_a_thread():
    is_stopped = stoppable.current_run().token
    await stoppable.to_thread(lambda: is_stopped.stopped and stoppable.check())


async def meets_in_a_stream():
    async for _ in stoppable.stream(numbers()):
        await asyncio.sleep(0)


async def meets_in_a_child():
    await stoppable.call(meets_with_a_block)


@stoppable.agent
async def child():
    await stoppable.sleep(60)


async def meets_in_an_agent():
    await child()


MEETINGS = [
    meets_with_a_block,
    meets_with_a_decorator,
    meets_with_a_guard,
    meets_with_a_coroutine_of_a_guard,
    meets_with_a_coroutine_of_a_decorator,
    meets_asleep,
    meets_at_a_thread,
    meets_on_a_thread,
    meets_in_a_stream,
    meets_in_a_child,
    meets_in_an_agent,
]


async def in_a_task_group(*branches):
    async with asyncio.TaskGroup() as group:
        for branch in branches:
            group.create_task(branch)


async def in_gather(*branches):
    await asyncio.gather(*branches)


async def again(meet):
    while True:
        await meet()
        await asyncio.sleep(0)


async def paid(client):
    async with stoppable.boundary("llm", "paid"):
        await client.create()


def a_branch_waits():
    return bool(waits._waiting)


async def stopped_with_a_call_in_flight(client, agent, **options):
    handle = await stoppable.spawn(agent, **options)
    await client.entered.wait()
    await handle.stop()
    return handle


@pytest.mark.parametrize("together", [in_a_task_group, in_gather])
@pytest.mark.parametrize("meet", MEETINGS)
async def test_the_call_of_a_sibling_finishes(together, meet):
    client = Client()

    async def agent():
        async with client:
            await together(paid(client), again(meet))

    handle = await stopped_with_a_call_in_flight(client, agent)
    await until(a_branch_waits)
    assert handle.status == "stopping"
    client.answered.set()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "signal", True)
    assert client.answers == ["answer"]
    assert {node.fate for node in handle.run.receipt.entries if node.name == "paid"} == {"finished"}


async def test_the_call_of_a_sibling_that_is_a_child_finishes():
    client = Client()

    async def agent():
        await in_a_task_group(stoppable.call(paid, client), stoppable.call(again, meets_with_a_block))

    handle = await stopped_with_a_call_in_flight(client, agent)
    await until(a_branch_waits)
    client.answered.set()
    assert (await handle.outcome()).status == "stopped"
    assert client.answers == ["answer"]


async def test_the_call_of_a_sibling_on_a_thread_is_answered():
    client, loop = Client(), asyncio.get_running_loop()

    def ask():
        with stoppable.boundary("llm", "paid"):
            asyncio.run_coroutine_threadsafe(client.create(), loop).result(30)

    async def sibling():
        await stoppable.to_thread(ask)
        client.answers.append("kept")

    async def agent():
        await in_a_task_group(sibling(), again(meets_with_a_block))

    handle = await stopped_with_a_call_in_flight(client, agent)
    await until(a_branch_waits)
    client.answered.set()
    assert (await handle.outcome()).status == "stopped"
    assert client.answers == ["answer", "kept"]


async def test_a_tool_around_its_branches_is_not_waited_for():
    """Nor two of them, whose branches wait for each other's."""
    began = asyncio.Event()

    async def branch(count=[0]):  # noqa: B006 - counts them all
        count[0] += 1
        if count[0] == 4:
            began.set()
        await again(meets_with_a_block)

    async def tool(name):
        async with stoppable.boundary("tool", name):
            await in_a_task_group(branch(), branch())

    async def agent():
        async with stoppable.boundary("tool", "outer"):
            await in_a_task_group(tool("left"), tool("right"))

    policy = stoppable.Policy(grace=3600)
    handle = await stoppable.spawn(agent, policy=policy)
    await began.wait()
    await handle.stop()
    async with asyncio.timeout(30):
        assert (await handle.outcome()).rung == "signal"
    fates = {node.name: node.fate for node in handle.run.receipt.entries if node.kind == "tool"}
    assert fates["outer"] == "closed"
    assert {fates["left"], fates["right"]} <= {"closed", "cancelled"}  # by the group around them, which saw one first


@pytest.mark.parametrize("escalates", [True, False])
async def test_it_waits_no_longer_than_the_grace(escalates, clock):
    client = Client()

    async def agent():
        await in_a_task_group(paid(client), again(meets_with_a_block))

    handle = await stopped_with_a_call_in_flight(client, agent)
    await until(a_branch_waits)
    if escalates:
        await handle.stop("immediate")
    else:
        clock.advance(10)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "cancel" if escalates else "interrupt")
    assert client.answers == []
    assert not a_branch_waits()


async def test_a_cancel_from_outside_is_not_held_back():
    client, waiting = Client(), asyncio.Event()

    async def cleans_up():
        try:
            await asyncio.sleep(60)
        finally:
            waiting.set()
            await meets_with_a_block()

    async def agent():
        sibling = asyncio.create_task(paid(client))
        branch = asyncio.create_task(cleans_up())
        await client.entered.wait()
        stoppable.current_run().stop()
        branch.cancel()
        await asyncio.gather(branch, return_exceptions=True)
        seen.append((waiting.is_set(), a_branch_waits(), sibling.done()))
        client.answered.set()
        await sibling

    seen = []
    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert seen == [(True, False, False)]


async def test_the_runs_own_task_cleans_up_at_once():
    """Only its clean-up may know how to end what still runs: it would wait in vain."""
    client = Client()

    async def agent():
        sibling = asyncio.create_task(paid(client))
        try:
            await again(meets_with_a_block)
        finally:
            client.answered.set()
            await sibling

    handle = await stopped_with_a_call_in_flight(client, agent)
    assert (await handle.outcome()).rung == "signal"
    assert client.answers == ["answer"]


async def test_a_process_beside_the_branches_is_not_waited_for():
    async def agent():
        async with await stoppable.open_process(["sleep", "60"]) as process:
            try:
                began.set()
                await in_a_task_group(again(meets_with_a_block), again(meets_asleep))
            finally:
                process.terminate()

    began = asyncio.Event()
    handle = await stoppable.spawn(agent, policy=stoppable.Policy(grace=3600))
    await began.wait()
    await handle.stop()
    async with asyncio.timeout(30):
        assert (await handle.outcome()).rung == "signal"

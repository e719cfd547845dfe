"""What is said about a run where it is started: name, labels, policy; and what is noted about it later."""

import asyncio
import functools
import threading

import pytest
from tests import worker_agents

import stoppable
from stoppable import EventType, InvalidArgument, Policy, Supervisor, sync

QUICK = Policy(grace=0.5)


async def look():
    return stoppable.current_run()


def look_blocking():
    return stoppable.current_run()


async def look_and_yield():
    yield stoppable.current_run()


def look_and_yield_blocking():
    yield stoppable.current_run()


@pytest.mark.parametrize("agent", [look, look_blocking])
async def test_spawn_and_call_say_how_a_child_is_listed_and_stopped(agent):
    async with stoppable.open_run("outer", labels={"team": "a", "tier": "1"}) as outer:
        handle = await stoppable.spawn(agent, name="tool ls", labels={"tier": "2"}, policy=QUICK)
        called = await stoppable.call(agent, name="tool ls", labels={"tier": "2"}, policy=QUICK)
    for run in (await handle.result(), called):
        assert (run.name, run.labels, run.policy) == ("tool ls", {"team": "a", "tier": "2"}, QUICK)
        assert run.parent is outer


def test_the_blocking_twins_take_the_same():
    handle = sync.spawn(look, name="one", labels={"k": "v"}, policy=QUICK)
    run = handle.result()
    assert (run.name, run.labels, run.policy) == ("one", {"k": "v"}, QUICK)
    with sync.open_run("outer"):
        assert sync.call(look_blocking, name="two", labels={"k": "v"}).name == "two"


async def test_an_agent_says_it_once_for_all_its_runs_and_a_start_may_say_otherwise():
    marked = stoppable.agent(name="researcher", labels={"tier": "1"}, policy=QUICK)(look)
    async with stoppable.open_run("outer"):
        for run in (
            await marked(),
            await stoppable.call(marked),
            await (await stoppable.spawn(functools.partial(functools.partial(marked)))).result(),
        ):
            assert (run.name, run.labels, run.policy) == ("researcher", {"tier": "1"}, QUICK)
        other = await stoppable.call(marked, name="other", labels={"more": "2"})
    assert (other.name, other.labels, other.policy) == ("other", {"tier": "1", "more": "2"}, QUICK)


async def test_agents_of_every_kind_take_options():
    marked = [
        stoppable.agent(name="n")(agent) for agent in (look, look_blocking, look_and_yield, look_and_yield_blocking)
    ]
    async with stoppable.open_run("outer"):
        names = [(await marked[0]()).name, marked[1]().name]
        names += [run.name async for run in marked[2]()]
        names += [run.name for run in marked[3]()]
    assert names == ["n"] * 4


def test_a_script_runs_an_agent_as_it_says():
    run = stoppable.run(stoppable.agent(name="script", policy=QUICK)(look))
    assert (run.name, run.policy) == ("script", QUICK)


async def test_a_supervisor_starts_an_agent_as_it_says():
    marked = stoppable.agent(name="researcher", labels={"tier": "1"}, policy=QUICK)(look)
    async with Supervisor() as supervisor:
        record = await (await supervisor.start(marked, labels={"team": "a"})).record()
        assert (record.name, record.labels, record.policy) == ("researcher", {"tier": "1", "team": "a"}, QUICK)
        assert (await (await supervisor.start(marked, name="other")).record()).name == "other"


@pytest.mark.parametrize(
    "wrong", [{"name": 3}, {"name": ""}, {"labels": {"k": 1}}, {"labels": ["k"]}, {"policy": "quick"}]
)
async def test_options_that_are_none_are_refused_before_anything_starts(wrong):
    async with stoppable.open_run("outer") as outer:
        with pytest.raises(InvalidArgument):
            await stoppable.spawn(look, **wrong)
        with pytest.raises(InvalidArgument):
            await stoppable.call(look, **wrong)
        assert outer.children == ()
    with pytest.raises(InvalidArgument):
        stoppable.agent(**wrong)


async def test_a_worker_process_knows_its_name_and_its_labels(importable):
    agents = importable(
        "named_agents",
        """
import stoppable

def me():
    run = stoppable.current_run()
    run.annotate(seen=run.name, odd={1, 2})
    return run.name, dict(run.labels)
""",
    )
    handle = await stoppable.spawn(agents.me, name="worker", labels={"k": "v"}, isolation="process")
    assert await handle.result() == ("worker", {"k": "v"})
    assert handle.run.metadata == {"seen": "worker", "odd": [1, 2]}


# Its children


async def test_children_are_those_that_a_stop_would_reach():
    proceed = asyncio.Event()
    async with stoppable.open_run("outer") as outer:
        handles = [await stoppable.spawn(proceed.wait, name=name) for name in "ab"]
        assert [child.name for child in outer.children] == ["a", "b"]
        proceed.set()
        for handle in handles:
            await handle.outcome()
        assert outer.children == ()


# Its token, asked from outside


@pytest.mark.usefixtures("uninstrumented")
async def test_a_true_of_the_token_is_a_delivery_also_on_a_thread_that_is_none_of_the_runs():
    asked = []

    def ask(token):
        asked.append(token.should_stop())

    async def body():
        token = stoppable.current_run().token
        for _ in range(2):
            thread = threading.Thread(target=ask, args=(token,))
            thread.start()
            thread.join()
            token._run.stop("cooperative")
        return "value"

    outcome = await (await stoppable.spawn(body)).outcome()
    assert (asked, outcome.status, outcome.result) == ([False, True], "stopped", "value")


async def test_a_thread_that_asks_the_token_is_no_part_of_the_run_and_need_not_end():
    asked, release = threading.Event(), threading.Event()

    def watch(token):
        while not token.should_stop():
            asked.wait(0.001)
        asked.set()
        release.wait(60)  # goes on for others

    async def body():
        run = stoppable.current_run()
        with stoppable.detached():
            threading.Thread(target=watch, args=(run.token,), daemon=True).start()
        run.stop("cooperative")
        while not asked.is_set():
            await asyncio.sleep(0.001)

    outcome = await (await stoppable.spawn(body)).outcome()
    release.set()
    assert outcome.status == "stopped"


# Facts about it


async def test_facts_about_a_run_are_merged_and_outlive_it():
    async with stoppable.open_run("job") as run:
        assert run.metadata == {}
        run.annotate(task="t-1", url="http://a")
        run.annotate(url="http://b")
    assert run.metadata == {"task": "t-1", "url": "http://b"}


async def test_facts_about_a_run_are_events_of_its_log():
    async def body():
        stoppable.current_run().annotate(task="t-1", odd={3})

    async with Supervisor() as supervisor:
        handle = await supervisor.start(body)
        await handle.outcome()
        told = [event.data async for event in handle.events() if event.type is EventType.ANNOTATED]
    assert told == [{"metadata": {"task": "t-1", "odd": [3]}}]


# Keyword arguments of the agent


async def _echo(question, *, session=None, name="its own"):
    return question, session, name


def _echo_blocking(question, *, session=None):
    return question, session


def _count(*, to):
    yield from range(to)


@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_spawn_passes_keyword_arguments_on(isolation):
    handle = await stoppable.spawn(worker_agents.echoes, "why", session="ann", isolation=isolation)
    assert await handle.result() == ("why", "ann")


async def test_every_way_to_start_passes_keyword_arguments_on():
    assert await stoppable.call(_echo, "why", session="ann") == ("why", "ann", "its own")
    async with stoppable.open_run("parent"):
        assert await stoppable.call(_echo, "why", session="ann", name="of the run") == ("why", "ann", "its own")
        assert await stoppable.call(_echo_blocking, "why", session="ann") == ("why", "ann")
    handle = await stoppable.spawn(_count, to=3)
    assert [item async for item in handle.stream()] == [0, 1, 2]
    async with stoppable.Supervisor() as supervisor:
        assert await (await supervisor.start(_echo_blocking, "why", session="ann")).result() == ("why", "ann")


def test_the_blocking_ways_pass_keyword_arguments_on():
    assert stoppable.sync.call(_echo_blocking, "why", session="ann") == ("why", "ann")
    assert stoppable.sync.spawn(_echo, "why", session="ann").result() == ("why", "ann", "its own")
    with stoppable.sync.Supervisor() as supervisor:
        assert supervisor.start(_echo_blocking, "why", session="ann").result() == ("why", "ann")


async def test_an_argument_that_the_agent_does_not_take_is_refused_at_once():
    with pytest.raises(TypeError, match=r"_echo cannot be started .*polcy"):
        await stoppable.spawn(_echo, "why", polcy=None)

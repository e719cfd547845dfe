"""Tool calls of clients: a stop reaches the server, and the receipt says what is known of the tool."""

import asyncio
import os
import signal
import uuid

import pytest
from mcp.shared.exceptions import MCPError
from tests.process_states import is_alive
from tests.waiting import until

import stoppable
from stoppable import Policy

from .conftest import DEADLINE, fastmcp

PATIENT = Policy(grace=DEADLINE, cancel=DEADLINE, kill=DEADLINE)  # a busy machine takes its time


def fates(handle):
    return {
        entry.name.removeprefix("mcp:"): str(entry.fate)
        for entry in handle.run.receipt.entries
        if entry.kind == "remote"
    }


def text_of(result):
    return " ".join(block.text for block in result.content)


def named(*tools):
    """Return who works with each tool, by names that no other test has."""
    return {tool: f"{tool}-{uuid.uuid4().hex}" for tool in tools}


async def started(client, place, who):
    """Start an agent that calls some tools at once, and wait until each works."""

    async def agent():
        calls = [client.call_tool(tool, {"who": name}) for tool, name in who.items()]
        return [text_of(result) for result in await asyncio.gather(*calls)]

    handle = await stoppable.spawn(agent, policy=PATIENT)
    await place.begun(*who.values())
    return handle


async def nothing_more_happens(place, names):
    before = [place.marks(name) for name in names]
    await asyncio.sleep(0.2)  # twenty marks of each tool that goes on
    assert [place.marks(name) for name in names] == before


async def until_quiet(place, *names):
    """Wait until the tools have ended: what is told to stop, or cancelled outside a run, may take a moment."""
    before = None
    while before != (before := [place.marks(name) for name in names]):
        await asyncio.sleep(0.2)


async def test_an_immediate_stop_ends_what_a_supervised_server_does_and_says_how(place):
    place, who = place("supervised"), named("hold", "work", "careful")
    async with asyncio.timeout(DEADLINE), place.client() as client:
        handle = await started(client, place, who)
        await handle.stop("immediate")
        await until(lambda: place.is_cut(who["work"]), DEADLINE)  # if its thread ended first, it would be cut itself
        assert handle.run.outcome is None  # the sync tool looks at nothing, and is waited for
        place.release(who["work"])
        assert (await handle.outcome()).status == "stopped"
        await nothing_more_happens(place, who.values())
        ended = fates(handle)
        assert ended.pop("careful") in {"closed", "cancelled"}  # at its check, or with the task that waits for it
        assert ended == {"hold": "cancelled", "work": "finished"}
        assert text_of(await client.call_tool("quick")) == "quick done"


async def test_a_graceful_stop_ends_a_tool_at_its_next_check_and_keeps_the_answer_of_one_that_finishes(place):
    place, who = place("supervised"), named("work", "careful")
    async with asyncio.timeout(DEADLINE), place.client() as client:
        careful = await started(client, place, {"careful": who["careful"]})
        work = await started(client, place, {"work": who["work"]})
        await careful.stop()
        assert ((await careful.outcome()).status, fates(careful)) == ("stopped", {"careful": "closed"})
        await work.stop()
        place.release(who["work"])
        outcome = await work.outcome()
        assert (outcome.status, fates(work)) == ("completed", {"work": "finished"})
        assert outcome.result == [f"worked for {who['work']}"]
        await nothing_more_happens(place, who.values())


@pytest.mark.parametrize("kind", ["plain", "supervised"])
async def test_a_connection_that_the_run_has_opened_carries_its_stop(place, kind):
    place, who = place(kind), named("hold")

    async def agent():
        async with place.client() as client:
            await client.call_tool("hold", {"who": who["hold"]})

    stoppable.instrument()  # now the requests of the run's own tasks are cut by the stop
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(agent, policy=PATIENT)
        await place.begun(who["hold"])
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"
        ends = {"told"} if kind == "plain" else {"cancelled"}
        if place.wire == "stdio":  # the server is a process of the run, so the stop ends it too, perhaps first
            ends |= {"told"}
        assert set(fates(handle).values()) <= ends
        await until_quiet(place, who["hold"])


async def test_a_call_of_a_plain_server_is_told_to_stop_and_its_run_is_not_lost(place):
    place, who = place("plain"), named("hold", "work")
    async with asyncio.timeout(DEADLINE), place.client() as client:
        handle = await started(client, place, who)
        await handle.stop("immediate")
        outcome = await handle.outcome()
        assert (outcome.status, outcome.rung) == ("stopped", "cancel")
        assert fates(handle) == {"hold": "told", "work": "told"}
        marks = place.marks(who["work"])
        await until(lambda: place.marks(who["work"]) > marks, DEADLINE)  # it goes on, as the receipt says that it may
        place.release(who["work"])
        assert text_of(await client.call_tool("quick")) == "quick done"


async def test_a_plain_server_may_finish_within_the_grace_and_is_told_when_it_is_over(local):
    place, who = local("plain"), named("work", "hold")
    async with asyncio.timeout(DEADLINE), place.client() as client:
        work = await started(client, place, {"work": who["work"]})
        await work.stop()
        place.release(who["work"])
        outcome = await work.outcome()
        assert (outcome.status, outcome.result, fates(work)) == (
            "completed",
            [f"worked for {who['work']}"],
            {"work": "finished"},
        )
        hold = await started(client, place, {"hold": who["hold"]})
        await hold.stop(grace=0.05)
        assert ((await hold.outcome()).status, fates(hold)) == ("stopped", {"hold": "told"})
        await until_quiet(place, who["hold"])


@pytest.mark.parametrize("kind", ["plain", "supervised"])
async def test_a_server_that_is_frozen_is_unreachable_and_the_run_is_lost(local, kind):
    place, who = local(kind), named("hold")
    policy = Policy(grace=0.2, interrupt=0.1, cancel=0.3, kill=1.0)
    async with asyncio.timeout(DEADLINE), place.client() as client:

        async def agent():
            await client.call_tool("hold", {"who": who["hold"]})

        handle = await stoppable.spawn(agent, policy=policy)
        await place.begun(who["hold"])
        os.kill(place.pid, signal.SIGSTOP)
        try:
            await handle.stop("immediate")
            assert ((await handle.outcome()).status, fates(handle)) == ("lost", {"hold": "unreachable"})
        finally:
            os.kill(place.pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", ["plain", "supervised"])
async def test_a_call_that_its_caller_gives_up_is_cancelled_at_once_and_the_run_goes_on(local, kind):
    place, who = local(kind), named("hold")
    async with asyncio.timeout(DEADLINE), place.client() as client:
        given_up = asyncio.Event()

        async def agent():
            call = asyncio.create_task(client.call_tool("hold", {"who": who["hold"]}))
            await given_up.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return text_of(await client.call_tool("quick"))

        handle = await stoppable.spawn(agent, policy=PATIENT)
        await place.begun(who["hold"])
        given_up.set()
        assert await handle.result() == "quick done"
        await until_quiet(place, who["hold"])


@pytest.mark.parametrize("kind", ["plain", "supervised"])
async def test_errors_are_those_of_the_plain_client(local, kind):
    place = local(kind)

    async def answers():
        async with place.client() as client:
            calls = [("fail", {"who": "a"}), ("hold", {"nobody": "a"}), ("nothing", {})]
            return [(answer.is_error, text_of(answer)) for answer in [await client.call_tool(*call) for call in calls]]

    async with asyncio.timeout(DEADLINE):
        outside = await answers()
        assert [is_error for is_error, _ in outside] == [True, True, True]
        assert await (await stoppable.spawn(answers)).result() == outside


async def test_a_server_that_dies_is_an_error_of_the_call_and_no_stop(local):
    place, who = local("plain"), named("hold")
    async with asyncio.timeout(DEADLINE), place.client() as client:

        async def agent():
            with pytest.raises(MCPError, match="Connection closed"):
                await client.call_tool("hold", {"who": who["hold"]})
            return "went on"

        handle = await stoppable.spawn(agent, policy=PATIENT)
        await place.begun(who["hold"])
        os.kill(place.pid, signal.SIGKILL)
        assert await handle.result() == "went on"


async def test_one_call_can_be_stopped_alone(local):
    place, who = local("supervised"), named("hold")
    async with asyncio.timeout(DEADLINE), place.client() as client:

        async def agent():
            with pytest.raises(stoppable.RunStopped):
                await client.call_tool("hold", {"who": who["hold"]})
            return text_of(await client.call_tool("quick"))

        handle = await stoppable.spawn(agent, policy=PATIENT)
        await place.begun(who["hold"])
        (child,) = handle.run.children
        child.stop("immediate")
        assert await handle.result() == "quick done"
        await nothing_more_happens(place, who.values())


async def test_a_stopped_run_calls_no_further_tool(local):
    place, who = local("plain"), named("work", "hold")
    async with asyncio.timeout(DEADLINE), place.client() as client:

        async def agent():
            await client.call_tool("work", {"who": who["work"]})
            await client.call_tool("hold", {"who": who["hold"]})

        handle = await stoppable.spawn(agent, policy=PATIENT)
        await place.begun(who["work"])
        await handle.stop()
        place.release(who["work"])
        assert ((await handle.outcome()).status, fates(handle)) == ("stopped", {"work": "finished"})
        assert place.marks(who["hold"]) == 0


async def test_a_server_that_belongs_to_the_run_ends_with_it(local):
    place, who = local("plain"), named("work")

    async def agent():
        async with place.client() as client:
            await client.call_tool("work", {"who": who["work"]})

    stoppable.instrument()
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(agent, policy=PATIENT)
        await place.begun(who["work"])
        await handle.stop("immediate")
        assert ((await handle.outcome()).status, fates(handle)) == ("stopped", {"work": "told"})
        assert not is_alive(place.pid)


@pytest.mark.skipif(fastmcp is None, reason="FastMCP is not installed")
@pytest.mark.parametrize("kind", ["plain", "supervised"])
async def test_the_client_of_fastmcp_takes_part(local, kind):
    place, who = local(kind), named("hold")
    transport = fastmcp.client.transports.StdioTransport(place.command.command, place.command.args)
    async with asyncio.timeout(DEADLINE), fastmcp.Client(transport) as client:

        async def agent():
            await client.call_tool("hold", {"who": who["hold"]})

        handle = await stoppable.spawn(agent, policy=PATIENT)
        await place.begun(who["hold"])
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"
        assert fates(handle) == {"hold": "told" if kind == "plain" else "cancelled"}
        await until_quiet(place, who["hold"])


async def test_outside_a_run_nothing_changes(local):
    place, who = local("supervised"), named("hold")
    async with asyncio.timeout(DEADLINE), place.client() as client:
        call = asyncio.create_task(client.call_tool("hold", {"who": who["hold"]}))
        await place.begun(who["hold"])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until_quiet(place, who["hold"])

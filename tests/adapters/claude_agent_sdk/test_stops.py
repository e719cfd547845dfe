"""A stop ends what Claude Code does for a run, with everything it has started, and its session goes on."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest
from claude_agent_sdk import HookMatcher, PermissionResultAllow, StreamEvent
from claude_agent_sdk._internal.transport.subprocess_cli import _ACTIVE_CHILDREN
from tests.adapters.scenarios.history import texts_of
from tests.waiting import until

import stoppable
from stoppable import Fate, Policy
from stoppable.adapters.claude_agent_sdk import turns
from stoppable.adapters.claude_agent_sdk.turns import ClaudeTurn
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT
from stoppable.testing import Pause, Reply

from .world import DEADLINE, FIRST, NEXT, PATIENT, answer_in, spawn, stop

MODEL, BASH, BOOK, AGENT = "llm:claude-sonnet-4-5", "tool:Bash", "tool:mcp__trips__book", "tool:Agent"
MODES = pytest.mark.parametrize("mode", ["graceful", "immediate"])
pytestmark = pytest.mark.timeout(3 * DEADLINE)  # most start two CLIs


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"  # what the CLI has left is waited for by somebody else


# Models


@MODES
async def test_an_answer_ends_between_two_pieces_and_is_kept(world, mode):
    pause = Pause()
    world.server.script(Reply("one two three", pause=pause))
    handle = await spawn(world.ask)
    pause.release(2)
    await until(lambda: handle.run.partial == "one two", DEADLINE)
    outcome, in_flight, fates = await stop(handle, mode)
    assert MODEL in in_flight
    assert (fates[MODEL], fates["spawn:claude"]) == (Fate.CLOSED, Fate.FINISHED)
    assert outcome.partial == "one two"
    assert len(world.server.requests) == 1
    assert "one two" in texts_of(await world.ask_again(), "assistant")


async def test_a_model_that_does_not_answer_is_not_waited_for(world):
    pause = Pause()
    world.server.script(Reply("one", pause=pause))
    handle = await spawn(world.ask)
    await world.server.wait_for_request_async(within=DEADLINE)
    _, in_flight, fates = await stop(handle)
    assert MODEL in in_flight
    assert fates[MODEL] is Fate.CLOSED


async def test_a_stop_before_the_model_is_asked_asks_none(world, monkeypatch):
    asked, go_on = asyncio.Event(), asyncio.Event()
    real = ClaudeTurn.ask_model

    async def ask_model(turn, agent_id):
        asked.set()
        await go_on.wait()
        return await real(turn, agent_id)

    monkeypatch.setattr(ClaudeTurn, "ask_model", ask_model)
    handle = await spawn(world.ask)
    await asyncio.wait_for(asked.wait(), DEADLINE)
    _, in_flight, _ = await stop(handle, then=go_on.set)
    assert in_flight == ("spawn:claude",)
    assert world.server.requests == []


# Tools


async def test_a_tool_of_this_process_finishes_and_no_model_is_asked(world):
    world.held = ("Rome",)
    world.server.script(Reply("Booking.", tool_calls=[world.booking("Rome")]))
    handle = await spawn(world.ask)
    await until(lambda: world.begun, DEADLINE)
    outcome, in_flight, fates = await stop(handle, then=world.release)
    assert BOOK in in_flight
    assert fates[BOOK] is Fate.FINISHED
    assert outcome.partial == "Booking."
    assert (world.booked, len(world.server.requests)) == (["Rome"], 1)
    assert answer_in(await world.ask_again(), "mcp__trips__book").startswith("booked Rome")


async def test_a_tool_of_this_process_is_cut(world):
    world.held = ("Rome",)
    world.server.script(Reply("Booking.", tool_calls=[world.booking("Rome")]))
    handle = await spawn(world.ask)
    await until(lambda: world.begun, DEADLINE)
    _, in_flight, fates = await stop(handle, "immediate")
    assert BOOK in in_flight
    assert fates[BOOK] in (Fate.INTERRUPTED, Fate.FINISHED)  # its task is cut, and the CLI may get the answer first
    world.release()
    assert (world.booked, len(world.server.requests)) == ([], 1)
    answer = answer_in(await world.ask_again(), "mcp__trips__book")
    assert MAY_HAVE_TAKEN_EFFECT in answer or "may have run" in answer


@pytest.mark.parametrize("kind", ["tool", "command"])
async def test_a_tool_that_is_about_to_begin_has_no_effect(world, monkeypatch, kind):
    asked, go_on = asyncio.Event(), asyncio.Event()
    real = ClaudeTurn.begin_tool

    async def begin_tool(turn, *args):
        asked.set()
        await go_on.wait()
        return await real(turn, *args)

    monkeypatch.setattr(ClaudeTurn, "begin_tool", begin_tool)
    call = world.booking("Rome") if kind == "tool" else world.shell(f"touch {world.home}/effect")
    world.server.script(Reply("Booking.", tool_calls=[call]))
    handle = await spawn(world.ask)
    await asyncio.wait_for(asked.wait(), DEADLINE)
    await until(lambda: MODEL not in handle.run.in_flight, DEADLINE)
    await stop(handle, then=go_on.set)
    monkeypatch.undo()
    assert (world.begun, (world.home / "effect").exists()) == ([], False)
    assert len(world.server.requests) == 1
    assert NO_EFFECT in answer_in(await world.ask_again(), call.name)


async def test_a_command_finishes_and_its_output_is_kept(world):
    world.server.script(Reply("Looking.", tool_calls=[world.command(), world.shell("touch effect", "two")]))
    handle = await spawn(world.ask)
    await world.until_command()
    _, in_flight, fates = await stop(handle, then=world.release)
    assert BASH in in_flight
    assert fates[BASH] is Fate.FINISHED
    assert (len(world.server.requests), (world.home / "effect").exists()) == (1, False)
    messages = await world.ask_again()
    texts = [message["content"] for message in messages if message["role"] == "tool"]
    assert "one done" in texts[0]
    assert NO_EFFECT in texts[1]


async def test_a_command_is_cut_with_what_left_its_group(world):
    inner = f"echo $$ >{world.home}/one.begun; exec sleep 300"
    world.server.script(Reply("Looking.", tool_calls=[world.shell(f"setsid sh -c '{inner}' & wait")]))
    handle = await spawn(world.ask, policy=Policy(cancel=10, kill=60))  # until KILL, which alone finds it
    pid = await world.until_command()
    _, in_flight, fates = await stop(handle, "immediate")
    assert BASH in in_flight
    assert fates[BASH] in (Fate.INTERRUPTED, Fate.KILLED)  # on a busy machine KILL may come first
    assert not is_running(pid)
    await world.ask_again()


async def test_a_command_in_the_background_ends_with_the_run(world, monkeypatch):
    monkeypatch.setattr(turns, "_TASK_SECONDS", DEADLINE)  # the CLI ends it, late on a busy machine
    pause = Pause()
    call = world.command(run_in_background=True)
    world.server.script(Reply("Looking.", tool_calls=[call]), Reply("I wait.", pause=pause))
    handle = await spawn(world.ask)
    pid = await world.until_command()
    pause.release()
    await until(lambda: handle.run.partial == "Looking.\n\nI", DEADLINE)
    await stop(handle)
    assert not is_running(pid)


# Sub-agents


@MODES
async def test_a_sub_agent_ends_and_its_command(world, mode):
    world.server.script(
        Reply("Delegating.", tool_calls=[world.delegation()]), Reply("Looking.", tool_calls=[world.command()])
    )
    handle = await spawn(world.ask)
    pid = await world.until_command()
    outcome, in_flight, fates = await stop(handle, mode, then=world.release if mode == "graceful" else lambda: None)
    assert {AGENT, BASH} <= {*in_flight}
    expected = Fate.FINISHED if mode == "graceful" else Fate.INTERRUPTED
    assert (fates[AGENT], fates[BASH]) == (expected, expected)
    assert outcome.partial == "Delegating.", "what a sub-agent says is no answer"
    assert not is_running(pid)
    assert len(world.server.requests) == 2
    await world.ask_again()


async def test_the_model_of_a_sub_agent_is_cut(world):
    pause = Pause()
    world.server.script(Reply("Delegating.", tool_calls=[world.delegation()]), Reply("one two", pause=pause))
    handle = await spawn(world.ask)
    await world.server.wait_for_request_async(2, within=DEADLINE)
    _, in_flight, fates = await stop(handle)
    assert {AGENT, MODEL} <= {*in_flight}
    assert (fates[AGENT], fates[MODEL]) == (Fate.INTERRUPTED, Fate.CLOSED)
    assert len(world.server.requests) == 2


# Force


async def test_kill_ends_the_cli_and_its_command(world):
    world.server.script(Reply("Looking.", tool_calls=[world.command()]))
    handle = await spawn(world.ask)
    pid = await world.until_command()
    _, in_flight, fates = await stop(handle, "kill")
    assert {"spawn:claude", BASH} <= {*in_flight}
    assert (fates["spawn:claude"], fates[BASH]) == (Fate.KILLED, Fate.KILLED)
    assert not is_running(pid)
    await world.ask_again()


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_cli_that_does_not_answer_is_ended(world, mode):
    world.server.script(Reply("Looking.", tool_calls=[world.command()]))
    pids = []

    async def body(client):
        await client.query(FIRST)
        async for _ in client.receive_response():
            pids[:] = [client._transport._process.pid]

    async with world.client() as client:  # it belongs to no run
        handle = await spawn(body, client, policy=Policy(grace=0, interrupt=0, cancel=0.5, kill=60))
        command = await world.until_command()
        os.kill(pids[0], signal.SIGSTOP)
        await stop(handle, mode)
        assert not is_running(command)
    await until(lambda: not is_running(pids[0]))


# Readers


async def test_a_reader_that_is_busy_does_not_keep_the_cli(world):
    world.server.script(Reply("Looking.", tool_calls=[world.command()]))

    async def body():
        async for _ in world.messages():
            await asyncio.Event().wait()

    handle = await spawn(body)
    pid = await world.until_command()
    await stop(handle, "immediate")
    assert not is_running(pid)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the SDK leaves its streams open
async def test_a_reader_that_leaves_ends_the_cli_and_completes(world):
    pause = Pause()
    world.server.script(Reply("one two", pause=pause))
    pause.release()

    async def body():
        async for message in world.messages():
            if isinstance(message, StreamEvent) and message.event["type"] == "content_block_delta":
                return "enough"
        return None

    handle = await spawn(body)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result, outcome.partial) == ("completed", "enough", "one")

    def has_ended():
        gc.collect()  # the SDK leaves it to the collector, which comes when enough was made
        return not _ACTIVE_CHILDREN

    await until(has_ended, DEADLINE)


# Clients that several runs use


async def test_a_client_goes_on_after_a_stop(world):
    pause = Pause()
    pause.release(2)
    world.server.script(Reply("one two three", pause=pause))
    heard = []

    async def turn(client, text):
        await client.query(text)
        async for message in client.receive_response():
            heard.append(message)
        return heard[-1].result

    async with world.client() as client:
        handle = await spawn(turn, client, FIRST)
        await until(lambda: handle.run.partial == "one two", DEADLINE)
        _, in_flight, fates = await stop(handle, "immediate")
        assert (in_flight, fates[MODEL]) == ((MODEL,), Fate.CLOSED)
        heard.clear()
        handle = await spawn(turn, client, NEXT)
        outcome = await handle.outcome()
        assert (outcome.status, outcome.result) == ("completed", "Fine.")
        assert "one two" not in str(heard), "the rest of the turn before is for nobody else"
        assert not any(isinstance(message, StreamEvent) for message in heard), "nobody has asked for pieces"
    assert "one two" in texts_of(world.last_messages(), "assistant")


async def test_a_tool_belongs_to_the_run_whose_turn_calls_it(world):
    world.held = ("Rome",)
    world.server.script(Reply("Booking.", tool_calls=[world.booking("Rome")]))

    async def turn(client):
        await client.query(FIRST)
        async for _ in client.receive_response():
            pass

    async with world.client() as client:
        handle = await spawn(turn, client)
        await until(lambda: world.begun, DEADLINE)
        await stop(handle, "immediate")
        world.release()
        assert world.booked == []
        await client.query(NEXT)
        assert [message async for message in client.receive_response()][-1].result == "Fine."


# What the user has


async def test_hooks_and_permissions_are_code_of_the_run(world):
    seen, asked = [], asyncio.Event()

    async def hook(data, _call_id, _context):
        seen.append((data["hook_event_name"], stoppable.current_run()))
        return {}

    async def may(_name, _arguments, _context):
        asked.set()
        await asyncio.Event().wait()
        return PermissionResultAllow()

    hooks = {"PreToolUse": [HookMatcher(hooks=[hook])]}
    world.server.script(Reply("Looking.", tool_calls=[world.shell("touch effect")]))
    handle = await spawn(world.ask, hooks=hooks, can_use_tool=may, allowed_tools=[])
    await asyncio.wait_for(asked.wait(), DEADLINE)
    assert seen == [("PreToolUse", handle.run)]
    await stop(handle, "immediate")
    assert not (world.home / "effect").exists()


async def test_outside_a_run_everything_is_as_before(world):
    world.server.script(Reply("Booking.", tool_calls=[world.booking("Rome")]))
    heard = []
    assert await world.ask(heard=heard) == "Fine."
    assert world.booked == ["Rome"]
    assert not any(isinstance(message, StreamEvent) for message in heard)


async def test_a_turn_that_is_not_stopped_completes(world):
    world.server.script(Reply("Booking.", tool_calls=[world.booking("Rome"), world.shell("echo looked")]))
    heard = []
    handle = await spawn(world.ask, FIRST, heard)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result, outcome.partial) == ("completed", "Fine.", "Booking.\n\nFine.")
    assert handle.run.metadata["session"] == world.session
    assert not any(isinstance(message, StreamEvent) for message in heard)


async def test_a_limit_of_model_calls_is_kept(world):
    world.server.script(*(Reply("Again.", tool_calls=[world.shell("true", str(number))]) for number in range(9)))
    async with stoppable.Supervisor() as supervisor:
        limits = stoppable.Limits(boundaries={"llm": 2})
        handle = await supervisor.start(world.ask, limits=limits, policy=PATIENT)
        outcome = await handle.outcome()
    assert (outcome.status, outcome.reason and outcome.reason.kind) == ("stopped", "limit"), outcome
    assert len(world.server.requests) == 2

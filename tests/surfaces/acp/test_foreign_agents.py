"""An agent of another make is a part of the run: its turn is over when all of its processes are dead."""

import asyncio
import shlex
import sys
from pathlib import Path

import acp
import pytest
from tests.waiting import until

import stoppable
from stoppable import Policy
from stoppable.adapters.acp import agent

from ...process_states import is_alive
from .conftest import DEADLINE

SCRIPT = Path(__file__).with_name("foreign_agent.py")
PATIENT = Policy(grace=DEADLINE, interrupt=0.1, cancel=DEADLINE, kill=DEADLINE)
BRISK = Policy(grace=0.2, interrupt=0.1, cancel=DEADLINE, kill=DEADLINE)


def foreign(kind, folder, **options):
    """Return an agent that a process of a kind executes."""
    words = [sys.executable, str(SCRIPT), kind, str(folder)]
    return agent(shlex.join(words), name=kind, **options)


async def stopped_at_work(kind, folder, policy, mode="graceful"):
    """Stop a run that has such an agent at work, and return its record and the record of the agent's run."""

    async def team():
        return await foreign(kind, folder)("work")

    handle = await stoppable.spawn(team, policy=policy)
    await until((folder / "begun").exists, DEADLINE)
    await until(lambda: handle.run.children and handle.run.children[0].partial == "so far", DEADLINE)
    [child] = handle.run.children
    receipt = await handle.stop(mode, wait=DEADLINE)
    assert (await handle.outcome()).status == "stopped"
    assert not is_alive(int((folder / "pid").read_text()))
    return child, receipt


async def test_an_honest_agent_ends_its_turn_by_itself(tmp_path):
    child, _ = await stopped_at_work("honest", tmp_path, PATIENT)
    assert (tmp_path / "ended").exists()
    assert (child.name, child.outcome.status, child.outcome.partial) == ("honest", "stopped", "so far")


async def test_an_agent_that_says_cancelled_is_not_believed(tmp_path):
    child, _ = await stopped_at_work("liar", tmp_path, PATIENT)
    assert child.outcome.status == "stopped"


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_deaf_agent_is_ended_after_the_grace(tmp_path, mode):
    child, _ = await stopped_at_work("deaf", tmp_path, BRISK if mode == "graceful" else PATIENT, mode)
    assert (child.outcome.status, child.outcome.partial) == ("stopped", "so far")


async def test_a_prompt_has_a_text_for_an_answer(tmp_path):
    answer = await asyncio.wait_for(foreign("honest", tmp_path, cwd=tmp_path)("hello"), DEADLINE)
    assert answer == f"hello in {tmp_path}"


async def test_errors_of_an_agent_are_errors_of_its_call(tmp_path):
    honest = foreign("honest", tmp_path)
    with pytest.raises(acp.RequestError, match="the tool is broken"):
        await honest("fail")
    with pytest.raises(ConnectionError, match="has ended with 3"):
        await honest("exit")
    with pytest.raises(stoppable.CommandNotFound):
        await agent("no-such-agent --acp")("hello")
    with pytest.raises(stoppable.InvalidArgument, match="empty"):
        agent("")


@pytest.mark.parametrize(
    ("allow", "answer"),
    [(False, "reject_once"), (True, "allow_once"), (lambda call: call.title == "ls", "reject_once")],
)
async def test_permissions_are_asked_for(tmp_path, allow, answer):
    assert await foreign("honest", tmp_path, allow=allow)("ask") == answer

"""Commands in the real terminals of OpenHands: they die with the run, and the shell lives on."""

import asyncio
import dataclasses
import os
import shutil
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from openhands.tools.terminal.terminal import terminal_session
from tests.process_states import is_alive

import stoppable
from stoppable.adapters.openhands import run_of, supervise, tool_calls

from .world import DEADLINE, answers, asks, call, converse, says, status

KINDS = ["subprocess", "tmux"]
PATIENT = stoppable.Policy(cancel=DEADLINE, kill=DEADLINE)
"""No run is lost because a terminal shows late, on a busy machine, that its command has ended."""
FORCEFUL = dataclasses.replace(PATIENT, interrupt=0.2)


def command(text, _id=None, timeout=3 * DEADLINE):
    """Return a call of a command; without a timeout OpenHands goes on when it has been silent for half a minute."""
    return call("terminal", _id, command=text, timeout=timeout)


async def written(path):
    """Wait for the pid that a command has written."""
    async with asyncio.timeout(DEADLINE):
        while not (path.exists() and path.read_text().strip()):
            await asyncio.sleep(0.005)
    return int(path.read_text())


@pytest.fixture(params=KINDS)
def talk(request, tmp_path, world):
    if request.param == "tmux" and shutil.which("tmux") is None:
        pytest.fail("tmux is not installed: apt-get install tmux")
    made = []

    def make(*script, **options):
        tools = [("terminal", {"terminal_type": request.param})]
        conversation = supervise(converse(tmp_path, *script, tools=tools), **{"policy": PATIENT, **options})
        made.append(conversation)
        return conversation

    yield make
    for conversation in made:
        conversation.close()


async def test_the_command_dies_and_the_shell_lives_on(talk, tmp_path):
    conversation = talk(
        asks(command("mkdir inner && cd inner && export MARK=seven")),
        asks(command(f"sh -c 'echo $$ > {tmp_path}/started; exec sleep 300'")),
        asks(command('echo "$MARK in $PWD"', "look")),
        says("done"),
    )
    running = asyncio.create_task(conversation.arun())
    pid = await written(tmp_path / "started")
    conversation.interrupt()
    await running
    assert not is_alive(pid)
    assert run_of(conversation).outcome.status == "stopped"
    assert status(conversation) == "paused"
    conversation.send_message("again")
    await conversation.arun()
    assert status(conversation) == "finished"
    assert f"seven in {tmp_path}/inner" in answers(conversation)["look"]


async def test_what_ignores_ctrl_c_dies_and_so_does_the_job_in_the_background(talk, tmp_path):
    conversation = talk(
        asks(command(f"sleep 300 & echo $! > {tmp_path}/job")),
        asks(command(f"sh -c 'trap \"\" INT; echo $$ > {tmp_path}/started; while :; do sleep 1; done'")),
        asks(command("echo still here", "look")),
        says("done"),
        policy=FORCEFUL,
    )
    running = asyncio.create_task(conversation.arun())
    pid, job = await written(tmp_path / "started"), await written(tmp_path / "job")
    conversation.interrupt()
    await running
    assert not is_alive(pid)
    assert not is_alive(job)
    assert run_of(conversation).outcome.status == "stopped"
    conversation.send_message("again")
    await conversation.arun()
    assert "still here" in answers(conversation)["look"]


LINES = {
    "a loop whose body ignores Ctrl-C": "while :; do sh -c 'trap \"\" INT; {begin}; exec sleep 300'; done",
    "a loop whose body ends well at Ctrl-C": "while :; do sh -c 'trap \"exit 0\" INT; {begin}; sleep 300 & wait'; done",
    "a list": "sh -c 'trap \"\" INT; {begin}; exec sleep 300'; sleep 300; sleep 300",
    "a loop of builtins": "sh -c '{begin}'; while :; do :; done",
    "a builtin that waits for input": "sh -c '{begin}'; read -r line",
}


@pytest.mark.parametrize("line", LINES)
async def test_nothing_more_of_the_command_line_is_executed(talk, tmp_path, line):
    text = LINES[line].format(begin=f"echo x >> {tmp_path}/rounds; echo $$ > {tmp_path}/begun")
    conversation = talk(
        asks(command("export MARK=seven")),
        asks(command(text)),
        asks(command('echo "$MARK is here"', "look")),
        says("done"),
        policy=FORCEFUL,
    )
    running = asyncio.create_task(conversation.arun())
    await written(tmp_path / "begun")
    conversation.interrupt()
    async with asyncio.timeout(DEADLINE):
        await running
    assert run_of(conversation).outcome.status == "stopped", run_of(conversation).receipt
    assert not is_alive((tmp_path / "begun").read_text().strip())
    rounds = (tmp_path / "rounds").read_text()
    conversation.send_message("again")
    await conversation.arun()
    assert "seven is here" in answers(conversation)["look"]
    assert (tmp_path / "rounds").read_text() == rounds


async def test_a_job_that_left_the_session_of_its_shell_dies_too(talk, tmp_path):
    conversation = talk(
        asks(command(f"setsid sh -c 'echo $$ > {tmp_path}/job; exec sleep 300' > /dev/null 2>&1 &")),
        asks(command(f"sh -c 'echo $$ > {tmp_path}/started; exec sleep 300'")),
        asks(command("echo still here", "look")),
        says("done"),
    )
    running = asyncio.create_task(conversation.arun())
    pid, job = await written(tmp_path / "started"), await written(tmp_path / "job")
    conversation.interrupt()
    await running
    assert not is_alive(pid)
    assert not is_alive(job)
    assert run_of(conversation).outcome.status == "stopped"
    conversation.send_message("again")
    await conversation.arun()
    assert "still here" in answers(conversation)["look"]


async def test_jobs_in_the_background_can_be_kept_and_a_later_stop_spares_those_of_earlier_runs(talk, tmp_path):
    conversation = talk(
        asks(command(f"sleep 300 & echo $! > {tmp_path}/job")),
        asks(command(f"sh -c 'echo $$ > {tmp_path}/started; exec sleep 300'")),
        background="keep",
    )
    running = asyncio.create_task(conversation.arun())
    pid, job = await written(tmp_path / "started"), await written(tmp_path / "job")
    try:
        conversation.interrupt()
        await running
        assert not is_alive(pid)
        assert is_alive(job)
    finally:
        os.kill(job, signal.SIGKILL)


async def test_a_normal_end_and_the_stop_of_a_later_run_leave_a_job_alone(talk, tmp_path):
    conversation = talk(
        asks(command(f"sleep 300 & echo $! > {tmp_path}/job")),
        says("done"),
        asks(command(f"sh -c 'echo $$ > {tmp_path}/started; exec sleep 300'")),
    )
    await conversation.arun()
    job = await written(tmp_path / "job")
    try:
        assert status(conversation) == "finished"
        assert is_alive(job)
        conversation.send_message("again")
        running = asyncio.create_task(conversation.arun())
        pid = await written(tmp_path / "started")
        conversation.interrupt()
        await running
        assert not is_alive(pid)
        assert is_alive(job)
    finally:
        os.kill(job, signal.SIGKILL)


async def test_one_command_is_ended_alone_and_the_agent_goes_on(talk, tmp_path):
    conversation = talk(
        asks(command(f"sh -c 'echo $$ > {tmp_path}/started; exec sleep 300'", "slow")),
        asks(command("echo still here", "look")),
        says("done"),
    )
    running = asyncio.create_task(conversation.arun())
    pid = await written(tmp_path / "started")
    tool_calls(conversation)["slow"].stop("immediate", "too slow")
    await running
    assert not is_alive(pid)
    assert status(conversation) == "finished"
    said = answers(conversation)
    assert "stopped (too slow)" in said["slow"]
    assert "still here" in said["look"]


async def test_a_command_that_outlives_its_call_between_ctrl_c_and_force_dies_too(talk, tmp_path, monkeypatch):
    """OpenHands returns at its own time-out, with the command still in front."""
    line = f'trap "echo $$ > {tmp_path}/pressed" INT; echo $$ > {tmp_path}/started; while :; do sleep 1; done'
    conversation = talk(
        asks(command(f"sh -c '{line}'", "slow")),
        asks(command("echo still here", "look")),
        says("done"),
        policy=dataclasses.replace(PATIENT, interrupt=DEADLINE),
    )
    running = asyncio.create_task(conversation.arun())
    pid = await written(tmp_path / "started")
    tool_calls(conversation)["slow"].stop("immediate", "too slow")
    await written(tmp_path / "pressed")
    late = SimpleNamespace(time=lambda: time.time() + 4 * DEADLINE, sleep=time.sleep)
    monkeypatch.setattr(terminal_session, "time", late)
    await running
    assert not is_alive(pid)
    assert "still here" in answers(conversation)["look"]


def test_a_sync_run_ends_its_commands_too(tmp_path, world):
    tools = [("terminal", {"terminal_type": "subprocess"})]
    conversation = supervise(
        converse(
            tmp_path,
            asks(command(f"sleep 300 & echo $! > {tmp_path}/job")),
            asks(command(f"sh -c 'echo $$ > {tmp_path}/started; exec sleep 300'")),
            tools=tools,
        ),
        policy=PATIENT,
    )
    running = threading.Thread(target=conversation.run)
    running.start()
    pid, job = asyncio.run(written(tmp_path / "started")), asyncio.run(written(tmp_path / "job"))
    conversation.interrupt()
    running.join(DEADLINE)
    assert not is_alive(pid)
    assert not is_alive(job)
    assert run_of(conversation).outcome.status == "stopped"
    conversation.close()

"""Runs inside an agent process are nodes of the tree here: found, watched and stopped by their id."""

import asyncio
import os
import signal
import threading
import time

import pytest
from tests.waiting import until

import stoppable
from stoppable import Supervisor
from stoppable._core.node import RunNode
from stoppable._engine.isolation import host
from stoppable._engine.isolation.messages import MessageSocket

AGENTS = """
import asyncio, os, threading, time
import stoppable

@stoppable.agent
async def waits(name, folder):
    stoppable.set_partial({"name": name})
    try:
        async with stoppable.boundary("tool", name):
            open(os.path.join(folder, name), "w").close()
            await stoppable.sleep(60)
    finally:
        stoppable.emit("cleaned", name=name)

async def three(folder):
    handles = [await stoppable.spawn(waits, name, folder) for name in "abc"]
    return [(await handle.outcome()).status.value for handle in handles]

async def chain(folder):
    return await stoppable.call(middle, folder)

@stoppable.agent
async def middle(folder):
    await waits("deep", folder)

async def deaf_chain(folder):
    return await stoppable.call(deaf, folder)

@stoppable.agent
async def deaf(folder):
    async with stoppable.boundary("tool", "deep"):
        time.sleep(60)  # the worker's loop hears nothing: only the kill ends this

@stoppable.agent
def hangs(folder):
    open(os.path.join(folder, "hung"), "w").close()
    threading.Event().wait(60)

async def with_one_that_hangs(folder):
    stuck = await stoppable.spawn(hangs, folder)
    outcome = await stuck.outcome()
    return outcome.status.value

async def stops_one_of_its_own(folder):
    handle = await stoppable.spawn(waits, "mine", folder)
    while not os.path.exists(os.path.join(folder, "seen")):
        await asyncio.sleep(0.001)
    await handle.stop("immediate", "not needed any more")
    return (await handle.outcome()).status.value

async def asks_elsewhere(folder):
    async with stoppable.remote("elsewhere", tell=lambda told: None, ref={"id": 1}):
        time.sleep(60)  # the worker hears nothing: only the kill ends it, and nobody asks the remote

async def is_answered(folder):
    async with stoppable.remote("elsewhere", tell=lambda told: None, ref={"id": 1}) as node:
        try:
            await asyncio.sleep(60)
        finally:
            node.ended("cancelled")

class Awkward(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")

@stoppable.agent
def returns_a_lock():
    stoppable.set_partial(threading.Lock())
    stoppable.emit("odd", lock=threading.Lock())
    return threading.Lock()

@stoppable.agent
def raises_awkwardly():
    raise Awkward(7, "seven")

async def has_odd_children():
    returned = await (await stoppable.spawn(returns_a_lock)).outcome()
    raised = await (await stoppable.spawn(raises_awkwardly)).outcome()
    return [returned.status.value, raised.status.value]

async def dies_with_a_child(folder):
    await stoppable.spawn(waits, "child", folder)
    while not os.path.exists(os.path.join(folder, "child")):
        await asyncio.sleep(0.001)
    os._exit(3)

async def nested(folder):
    return await (await stoppable.spawn(chain, folder, isolation="process")).outcome()
"""


@pytest.fixture
def agents(importable):
    return importable("tree_agents", AGENTS)


def below(run: RunNode) -> dict[str, RunNode]:
    """Return the live runs below one, by what their partial or name says."""
    found, nodes = {}, [run]
    for node in nodes:
        nodes += node.list_children()
        partial = node.partial
        found[partial["name"] if isinstance(partial, dict) else node.name] = node
    return found


async def test_one_of_three_is_stopped_and_the_others_go_on(agents, tmp_path):
    """G4: exactly that run, though all three live in one process."""
    handle = await stoppable.spawn(agents.three, str(tmp_path), isolation="process")
    await until(lambda: {"a", "b", "c"} <= set(below(handle.run)))
    await until(lambda: (tmp_path / "c").exists() and len(handle.run.in_flight) == 3)
    inner = below(handle.run)
    receipt = inner["b"].stop("graceful", "enough of b")
    assert (receipt.answer, receipt.in_flight) == ("accepted", ("tool:b",))
    outcome = await until(lambda: inner["b"].outcome)
    assert (outcome.status, outcome.reason.message, outcome.partial) == ("stopped", "enough of b", {"name": "b"})
    assert outcome.clean
    assert inner["b"].receipt.acknowledged_at is not None
    assert [inner[name].status for name in "ac"] == ["running", "running"]
    assert handle.run.status == "running"
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert {inner[name].outcome.status for name in "ac"} == {"stopped"}


async def test_a_chain_in_a_process_in_a_process_is_told_of_at_the_top(agents, tmp_path):
    handle = await stoppable.spawn(agents.nested, str(tmp_path), isolation="process")
    await until(lambda: "deep" in below(handle.run))
    await until(lambda: handle.run.in_flight)
    deep = below(handle.run)["deep"]
    assert [run.name for run in deep.lineage()] == ["waits", "middle", "chain", "nested"]
    await handle.stop("graceful")
    await handle.outcome()
    runs = {(node.name, node.fate) for node in handle.run.receipt.entries if node.kind == "run"}
    assert {name for name, _ in runs} == {"waits", "middle", "chain", "nested"}
    assert {deep.status, deep.parent.status, deep.parent.parent.status} == {"stopped"}


async def test_a_run_that_was_stopped_inside_is_stopped_here_with_its_mode_and_reason(agents, tmp_path):
    handle = await stoppable.spawn(agents.stops_one_of_its_own, str(tmp_path), isolation="process")
    mine = await until(lambda: below(handle.run).get("mine"))
    (tmp_path / "seen").touch()
    assert (await handle.outcome()).result == "stopped"
    assert mine.outcome.status == "stopped"
    assert (mine.receipt.mode, mine.receipt.reason.message) == ("immediate", "not needed any more")
    assert len(mine.stops()) == 1
    assert handle.run.first_stop is None


async def test_a_thread_that_hangs_inside_is_lost_and_the_process_goes_on(agents, tmp_path):
    """G13: to kill the process would end the runs beside it."""
    policy = stoppable.Policy(cancel=0.1, kill=0.1)
    async with stoppable.open_run("policy", policy=policy):
        handle = await stoppable.spawn(agents.with_one_that_hangs, str(tmp_path), isolation="process")
        await until(lambda: (tmp_path / "hung").exists() and "hangs" in below(handle.run))
        hangs = below(handle.run)["hangs"]
        hangs.stop("immediate")
        outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == ("completed", "lost")
    assert hangs.outcome.status == "lost"
    abandoned = [node.name for node in hangs.receipt.entries if node.kind == "participant"]
    assert len(abandoned) == 1
    # Both climb the ladder; the first that comes to its end gives it up, and only the worker knows where it stands.
    assert "in hangs" in abandoned[0] or "hangs in agent process" in abandoned[0]


async def test_a_run_inside_that_is_given_up_before_the_death_of_its_process_was_seen_is_named(
    agents, tmp_path, monkeypatch
):
    may_hear = threading.Event()
    may_hear.set()
    receive = MessageSocket.receive

    def hear(line):
        message = receive(line)
        may_hear.wait(30)
        return message

    monkeypatch.setattr(MessageSocket, "receive", hear)
    async with stoppable.open_run("policy", policy=stoppable.Policy(kill=0.1)):
        handle = await stoppable.spawn(agents.with_one_that_hangs, str(tmp_path), isolation="process")
        await until(lambda: (tmp_path / "hung").exists() and "hangs" in below(handle.run))
        hangs, [worker] = below(handle.run)["hangs"], host.live
        may_hear.clear()
        os.kill(worker._reaped.reaper.pid, signal.SIGKILL)
        await until(lambda: not worker.alive())
        hangs.stop("kill")
        outcome = await until(lambda: hangs.outcome)
        may_hear.set()
        assert (await handle.outcome()).status == "failed"
    assert outcome.status == "lost"
    [named] = [node.name for node in hangs.receipt.entries if node.kind == "participant"]
    assert "hangs in agent process" in named


async def test_a_kill_of_the_worker_is_a_kill_of_what_was_in_flight_inside(agents, tmp_path):
    handle = await stoppable.spawn(agents.deaf_chain, str(tmp_path), isolation="process")
    await until(lambda: handle.run.in_flight)
    inner = below(handle.run)
    await handle.stop("kill")
    assert (await handle.outcome()).rung == "kill"
    assert {(run.outcome.status, run.outcome.clean) for run in inner.values()} == {("stopped", False)}
    [fate] = [node.fate for node in handle.run.receipt.entries if (node.kind, node.name) == ("tool", "deep")]
    assert fate == "killed"


async def test_a_remote_of_a_worker_that_was_killed_is_unreachable(agents, tmp_path):
    """The remote has not died with the process that called it, and nobody can ask it any more."""
    handle = await stoppable.spawn(agents.asks_elsewhere, str(tmp_path), isolation="process")
    await until(lambda: "remote:elsewhere" in handle.run.in_flight)
    await handle.stop("kill")
    assert (await handle.outcome()).status == "lost"
    receipt = await handle.receipt()
    assert [node.fate for node in receipt.entries if node.kind == "remote"] == ["unreachable"]


async def test_the_word_of_a_remote_inside_a_worker_counts(agents, tmp_path):
    handle = await stoppable.spawn(agents.is_answered, str(tmp_path), isolation="process")
    await until(lambda: "remote:elsewhere" in handle.run.in_flight)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    receipt = await handle.receipt()
    assert [node.fate for node in receipt.entries if node.kind == "remote"] == ["cancelled"]


async def test_a_worker_that_dies_leaves_its_inner_runs_failed(agents, tmp_path):
    handle = await stoppable.spawn(agents.dies_with_a_child, str(tmp_path), isolation="process")
    child = await until(lambda: below(handle.run).get("child"))
    assert (await handle.outcome()).status == "failed"
    assert child.outcome.status == "failed"
    assert "ended with code 3" in str(child.outcome.error)


async def test_what_inner_runs_return_and_raise_cannot_harm_the_outer_one(agents):
    """Nobody here awaits it: what cannot be sent is said so, and its status is what it was."""
    seen = {}

    class Told(stoppable._core.node.Sink):
        def ended(self, run):
            seen[run.name] = run.outcome

    async with stoppable.open_run("watched") as watched:
        watched.sink = Told()
        outcome = await (await stoppable.spawn(agents.has_odd_children, isolation="process")).outcome()
    assert outcome.result == ["completed", "failed"]
    assert "has no JSON form" in seen["returns_a_lock"].result["omitted"]
    assert repr(seen["raises_awkwardly"].error) == "RuntimeError('Awkward: 7: seven')"
    assert "in raises_awkwardly" in seen["raises_awkwardly"].error.__notes__[0]


async def test_a_supervisor_finds_and_stops_a_run_inside_a_process_by_its_id(agents, tmp_path):
    async with Supervisor() as supervisor:
        handle = await supervisor.start(agents.three, str(tmp_path), isolation="process", owner="ada")

        async def children():
            _, *found = await supervisor.tree(handle.id)
            return found

        async with asyncio.timeout(60):
            while len(found := await children()) < 3 or not all((tmp_path / name).exists() for name in "abc"):
                await asyncio.sleep(0.005)
        assert {record.owner for record in found} == {"ada"}
        await supervisor.stop(found[1].id, reason="this one", wait=30)
        one = await supervisor.get(found[1].id)
        assert (one.status, one.outcome.reason.message) == ("stopped", "this one")
        assert (await supervisor.get(handle.id)).status == "running"
        await supervisor.stop(handle.id, mode="immediate", wait=30)
        assert {record.status for record in await children()} == {"stopped"}


async def test_a_stop_that_comes_when_the_worker_has_gone_is_acknowledged(agents, tmp_path):
    """The stop has found the agent process among the members, and notifies it after its end."""
    handle = await stoppable.spawn(agents.chain, str(tmp_path), isolation="process")
    await until(lambda: handle.run.in_flight)
    worker = next(member for member in handle.run.members if hasattr(member, "_reaped"))
    await handle.stop("kill")
    await handle.outcome()
    late = stoppable._core.stop.Stop(handle.run, stoppable.Mode.KILL, stoppable.Reason())
    worker.tell(late)
    assert late.acknowledged_at is not None
    assert not worker._sent_stops
    assert time.monotonic() >= late.acknowledged_at

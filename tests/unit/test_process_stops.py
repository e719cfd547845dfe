"""A stop reaches the processes of a run, rung by rung; real processes and real signals."""

import asyncio
import random
import signal
import threading
import time

import pytest
from tests.process_states import is_alive
from tests.waiting import until

import stoppable
from stoppable import Limits, Policy
from stoppable._engine.processes.command import Command
from stoppable._engine.processes.group import Force, ProcessGroup, live
from stoppable._engine.processes.pipes import Pipes
from stoppable._engine.processes.process import open_process, open_process_sync, run_process, run_process_sync

from .process_tools import STUBBORN, Flags, bearers, nothing_left

_nothing_left = pytest.fixture(autouse=True)(nothing_left)


@pytest.fixture
def flags(tmp_path):
    return Flags(tmp_path)


async def start(agent, policy=None):
    """Start a root run with a policy."""

    async def body():
        stoppable.current_run().policy = policy or Policy()
        return await agent()

    return await stoppable.spawn(body)


# Before and while it runs


async def test_a_stopped_run_starts_no_process(flags):
    async def agent():
        stoppable.current_run().stop("cooperative")
        for attempt in (run_process, open_process):
            with pytest.raises(stoppable.AgentStopped):
                await attempt(flags.up("started"), shell=True)

    assert (await (await stoppable.spawn(agent)).outcome()).status == "stopped"
    assert not flags.is_up("started")


async def test_it_is_in_flight_under_its_own_name(flags):
    async def agent():
        await asyncio.gather(
            run_process(["/bin/sleep", "1000"]),
            run_process("SECRET=x /bin/cat; true", shell=True),
            run_process(f"{flags.up('up')}; sleep 1000", shell=True, name="build"),
        )

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    receipt = await handle.stop("immediate")
    assert set(receipt.in_flight) >= {"spawn:sleep", "spawn:build"}
    assert (await handle.outcome()).status == "stopped"
    assert {node.fate for node in handle.run.receipt.entries if node.name == "build"} == {"cancelled"}


async def test_a_process_that_ended_is_in_flight_no_more():
    async def agent():
        await run_process(["true"])
        async with await open_process(["true"]) as process:
            await process.wait()
            await until(lambda: not live)
            return stoppable.current_run().stop("cooperative").in_flight

    assert (await (await stoppable.spawn(agent)).outcome()).result == ()


async def test_a_run_has_its_cookie_and_a_child_run_its_own():
    async def child():
        return (await run_process("echo $STOPPABLE_RUN", shell=True)).stdout.strip(), stoppable.current_run().id

    async def agent():
        return await child(), await stoppable.call(child)

    (outer, outer_id), (inner, inner_id) = await (await stoppable.spawn(agent)).result()
    assert (outer, inner) == (outer_id, inner_id)
    assert outer != inner


async def test_processes_count_against_a_limit():
    async def agent():
        async with stoppable.open_run("limited", limits=Limits(boundaries={"spawn": 1})):
            await run_process(["true"])
            await run_process(["true"])

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert outcome.status == "failed"
    assert outcome.error.outcome.reason.kind == "limit"


# Graceful


async def test_a_process_that_ends_in_time_keeps_its_output(flags):
    results = []

    async def agent():
        results.append(await run_process(f"{flags.up('up')}; {flags.wait('go')}; echo finished", shell=True))
        stoppable.check()

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    receipt = await handle.stop()
    assert receipt.in_flight == ("spawn:touch",)
    flags.raise_("go")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.partial) == ("stopped", "signal", None)
    assert [(result.returncode, result.stdout) for result in results] == [(0, "finished\n")]
    assert {node.fate for node in handle.run.receipt.entries if node.kind == "spawn"} == {"finished"}


async def test_a_process_that_does_not_end_in_time_gets_term_at_cancel(flags, clock):
    async def agent():
        await run_process(f"trap 'echo bye; exit' TERM; {flags.up('up')}; {flags.wait('never')}", shell=True)

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    await handle.stop()
    clock.advance(10.9)
    await asyncio.sleep(0.1)
    assert handle.status == "stopping"
    clock.advance(0.1)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.partial) == ("stopped", "cancel", "bye\n")


# Immediate


async def test_term_lets_a_clean_up_run_also_one_that_starts_processes(flags):
    """The trap starts a process after TERM was sent: it is not hit, and its output is kept."""

    async def agent():
        clean_up = f"sleep 0.2; {flags.up('clean')}; echo cleaned; exit"
        await run_process(f"trap '{clean_up}' TERM; echo working; {flags.up('up')}; {flags.wait('never')}", shell=True)

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "cancel", True)
    assert outcome.partial == "working\ncleaned\n"
    assert flags.is_up("clean")


async def test_one_that_is_suspended_gets_term_too(flags):
    async def agent():
        await run_process(f"{flags.up('up')}; kill -STOP $$; sleep 1000", shell=True)

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    await handle.stop("immediate")
    assert (await handle.outcome()).rung == "cancel"


async def test_one_that_ignores_term_is_killed_at_kill(flags, clock):
    async def agent():
        await run_process(f"trap '' TERM; echo so far; {flags.up('up')}; {STUBBORN}", shell=True)

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    await handle.stop("immediate")
    await until(lambda: handle.run.body_end is not None)  # the task is gone, the process is not
    clock.advance(4.9)
    await asyncio.sleep(0.05)
    assert handle.status == "stopping"
    assert bearers(handle.id)
    clock.advance(0.1)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean, outcome.partial) == ("stopped", "kill", False, "so far\n")
    assert {node.kind: node.fate for node in handle.run.receipt.entries} == {"run": "stopped", "spawn": "killed"}
    assert not bearers(handle.id)


async def test_output_so_far_extends_the_partial_of_the_run(flags):
    async def agent(partial):
        stoppable.set_partial(partial)
        await run_process(f"echo out; echo err >&2; {flags.up('up')}; sleep 1000", shell=True, output_limit=3)

    for partial, expected in (("text: ", "text: out"), ([1], [1, "out"]), ({"own": 1}, {"own": 1})):
        flags.lower("up")
        handle = await stoppable.spawn(agent, partial)
        await until(lambda: flags.is_up("up"))
        await handle.stop("immediate")
        assert (await handle.outcome()).partial == expected


# Somebody else's cancel


async def test_a_timeout_inside_a_run_passes_at_once_and_the_run_goes_on(flags):
    async def expire(deadline):
        await until(lambda: flags.is_up("up"))
        deadline.reschedule(asyncio.get_running_loop().time())

    async def agent():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as deadline, asyncio.TaskGroup() as group:
                group.create_task(expire(deadline))
                await run_process(f"echo so far; {flags.up('up')}; {STUBBORN}", shell=True)
        await until(lambda: not live)
        return (await run_process(["echo", "went on"])).stdout

    handle = await start(agent, Policy(cancel=0.2))
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result, outcome.partial) == ("completed", "went on\n", "so far\n")
    assert not bearers(handle.id)


async def test_a_cancel_that_ends_the_run_leaves_it_stopping_until_the_processes_are_dead(flags, clock):
    runs = []

    async def agent():
        async with stoppable.open_run("inner", policy=Policy(grace=0.1, interrupt=0, cancel=0.1)) as run:
            runs.append(run)
            await run_process(f"trap '' TERM; {flags.up('up')}; {STUBBORN}", shell=True)

    task = asyncio.create_task(agent())
    await until(lambda: flags.is_up("up"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runs[0].status == "stopping"
    assert bearers(runs[0].id)
    clock.advance(1)
    await until(lambda: runs[0].status == "stopped")
    assert not bearers(runs[0].id)


async def test_stops_that_race_with_the_start_leave_nothing():
    async def agent():
        for _ in range(20):
            await run_process("setsid sleep 1000 & sleep 0.002", shell=True)

    for seed in range(30):
        rng = random.Random(seed)
        handle = await stoppable.spawn(agent)
        await asyncio.sleep(rng.random() * 0.02)
        await handle.stop(rng.choice(["immediate", "kill"]))
        assert (await handle.outcome()).status == "stopped"
        assert not bearers(handle.id)


async def test_a_blocked_event_loop_holds_up_no_signal():
    handles, pids = [], []

    async def agent():
        async with await open_process(["sleep", "1000"]) as process:
            pids.append(process.pid)
            blocked = time.monotonic() + 20
            while is_alive(process.pid) and time.monotonic() < blocked:
                time.sleep(0.005)
            deaths.append(time.monotonic())

    def press():
        while not pids:
            time.sleep(0.005)
        pressed.append(time.monotonic())
        handles[0].run.stop("kill")

    deaths, pressed = [], []
    presser = threading.Thread(target=press)
    presser.start()
    handles.append(await stoppable.spawn(agent))
    assert (await handles[0].outcome()).status == "stopped"
    presser.join(60)
    assert deaths[0] - pressed[0] < 20


async def test_one_that_is_to_be_ended_before_it_began_is_not_started(flags):
    group = ProcessGroup(Command.of(flags.up("started"), shell=True), ends_with_leader=True)
    group._ask(Force.TERM)
    group.start(Pipes(stdin=None, stdout=None, stderr=None))
    await until(lambda: group.settled)
    with pytest.raises(stoppable.StoppableError, match="'touch' was not started"):
        group.exit_code()
    assert not flags.is_up("started")


# Threads


@pytest.mark.parametrize(("mode", "rung", "trap"), [("immediate", "cancel", ""), ("kill", "kill", "trap '' TERM; ")])
async def test_the_blocking_twin_raises_when_the_stop_ended_its_process(flags, mode, rung, trap):
    seen = []

    def agent():
        try:
            run_process_sync(f"{trap}echo so far; {flags.up('up')}; sleep 1000", shell=True, check=True)
        except BaseException as error:
            seen.append(error)
            raise

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    await handle.stop(mode)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.partial, outcome.error) == ("stopped", rung, "so far\n", None)
    assert isinstance(seen[0], stoppable.AgentStopped)


async def test_the_blocking_twin_returns_a_result_that_came_in_time(flags):
    def agent():
        return run_process_sync(f"{flags.up('up')}; {flags.wait('go')}; echo finished", shell=True).stdout

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    await handle.stop()
    flags.raise_("go")
    assert (await handle.outcome()).result == "finished\n"


async def test_a_blocking_open_process_is_ended_too():
    def agent():
        with open_process_sync(["cat"]) as process:
            process.stdin.write("ready\n")
            ready.append(process.stdout.readline())
            process.wait()

    ready = []
    handle = await stoppable.spawn(agent)
    await until(lambda: ready)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"


# open_process


async def test_after_a_stop_nothing_more_is_written_and_iterating_ends_between_lines():
    lines = []

    async def agent():
        async with await open_process(["cat"]) as process:
            await process.stdin.write("one\ntwo\n")
            with pytest.raises(stoppable.AgentStopped):
                async for line in process.stdout:
                    lines.append(line)
                    stoppable.current_run().stop()
            assert await process.stdout.readline() == "two\n"
            await process.stdin.write("rm -rf /\n")

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, outcome.rung, outcome.error) == ("stopped", "signal", None)
    assert lines == ["one\n"]


async def test_what_was_left_open_ends_with_the_run():
    async def agent():
        return (await open_process("setsid sleep 1000 & sleep 1000", shell=True)).pid

    handle = await stoppable.spawn(agent)
    pid = await handle.result()
    await until(lambda: not is_alive(pid) and not bearers(handle.id))
    await until(lambda: not live)


# Shields


async def test_a_clean_up_process_in_a_shield_is_not_cut(flags):
    async def agent():
        try:
            await run_process(f"{flags.up('up')}; sleep 1000", shell=True)
        finally:
            with stoppable.shielded(5):
                result = await run_process("sleep 0.2; echo cleaned", shell=True)
            stoppable.set_partial(result.stdout)

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial) == ("stopped", "cleaned\n")
    assert handle.run.receipt.entered_after == ("spawn:sleep",)


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_clean_up_process_is_cut_when_its_shield_is_over(blocking, flags, clock):
    command = f"trap 'echo cut; exit 9' TERM; {flags.up('up')}; {flags.wait('never')}"
    codes = []

    async def agent():
        stoppable.current_run().stop("immediate")
        with stoppable.shielded(3):
            codes.append((await run_process(command, shell=True)).returncode)

    def blocking_agent():
        stoppable.current_run().stop("immediate")
        with stoppable.shielded(3):
            codes.append(run_process_sync(command, shell=True).returncode)

    handle = await stoppable.spawn(blocking_agent if blocking else agent)
    await until(lambda: flags.is_up("up"))
    clock.advance(2.9)
    await asyncio.sleep(0.1)
    assert handle.status == "stopping"
    assert bearers(handle.id)
    clock.advance(0.1)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial) == ("stopped", "cut\n")


async def test_an_open_process_is_not_cut_while_its_task_is_in_a_shield(flags, clock):
    said = []

    async def agent():
        async with await open_process(["cat"]) as process:
            with stoppable.shielded(3):
                stoppable.current_run().stop("immediate")
                await asyncio.sleep(0.05)
                await process.stdin.write("quit\n")
                said.append(await process.stdout.readline())

    assert (await (await stoppable.spawn(agent)).outcome()).status == "stopped"
    assert said == ["quit\n"]


async def test_a_process_of_a_shield_is_cut_when_the_shield_is_left(clock):
    codes = []

    def agent():
        stoppable.current_run().stop("immediate")
        with stoppable.shielded(60):
            process = open_process_sync(["cat"])
            process.stdin.write("alive\n")
            codes.append(process.stdout.readline())
        try:
            process.wait()
        finally:
            codes.append(process.returncode)

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert codes == ["alive\n", -signal.SIGTERM]


async def test_of_an_open_process_only_what_its_reader_recorded_is_kept(flags):
    """What was read may be in the partial already, in other words; the last words can still be read in a clean-up."""
    last = []

    async def agent():
        trap, end = "trap 'echo bye; exit' TERM", flags.wait("never")
        command = f"{trap}; echo one; {flags.wait('go')}; echo two; {flags.up('up')}; {end}"
        async with await open_process(command, shell=True) as process:
            try:
                async for line in process.stdout:
                    stoppable.append_partial(line.upper())
                    flags.raise_("go")
                    await until(lambda: stoppable.current_run().token.stopped)
            finally:
                process.send_signal(signal.SIGTERM)
                last.append(await process.stdout.read())

    handle = await stoppable.spawn(agent)
    await until(lambda: flags.is_up("up"))
    await handle.stop("cooperative")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, last) == ("stopped", "ONE\n", ["two\nbye\n"])

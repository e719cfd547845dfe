"""Remote nodes: what a run calls in another service is told of the stop, and its fate is what that service says."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import until

import stoppable
from stoppable import Fate, InvalidArgument, Policy, Supervisor

QUICK = Policy(grace=0.2, interrupt=0.1, cancel=0.3, kill=1.0)
ENDS = {"completed": "finished", "canceled": "cancelled"}


class Remote:
    """The service, and what an adapter for it does."""

    def __init__(self, process, port):
        self.process, self.port = process, port
        self.seen = asyncio.Event()  # the job's id
        self.begun = asyncio.Event()  # the job was asked for
        self.told = []  # what `tell` got

    async def ask(self, **question):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with contextlib.closing(writer):
            writer.write(json.dumps(question).encode() + b"\n")
            line = await reader.readline()
        if not line:
            raise ConnectionError("it hung up")
        return json.loads(line)

    async def call(self, script):
        """Have a job done, as a node of the tree."""

        async def tell(stop):
            self.told.append(stop)
            answer = await self.ask(op="stop", id=self.id, mode=stop.mode, grace=stop.grace, reason=str(stop.reason))
            if answer.get("error") == "internal":
                raise ConnectionError("it could not be asked")
            return ENDS.get(answer.get("state"))

        async with stoppable.remote(f"job at {self.port}", tell=tell) as node:
            self.node = node
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            with contextlib.closing(writer):
                writer.write(json.dumps({"op": "start", "script": script}).encode() + b"\n")
                self.begun.set()
                async for line in reader:
                    said = json.loads(line)
                    if "id" in said:
                        self.id = said["id"]
                        node.identify(job=self.id, port=self.port)
                        self.seen.set()
                    if said["state"] in ENDS:
                        node.ended(ENDS[said["state"]])
                        return said["state"]
            raise ConnectionError("it broke off")


@pytest.fixture
async def remote():
    script = Path(__file__).with_name("scripted_remote.py")
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield Remote(process, int(process.stdout.readline()))
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def told(receipt):
    """Return what a receipt says of the remote."""
    return [node.fate for node in receipt.entries if node.kind == "remote"]


async def started(remote, script, policy=None):
    handle = await stoppable.spawn(remote.call, script, name="parent", policy=policy)
    await remote.seen.wait()
    return handle


async def test_a_remote_that_finishes_is_a_completed_child(remote):
    handle = await started(remote, "works")
    (child,) = handle.run.children
    assert (child.name, child.in_flight) == (f"job at {remote.port}", (f"remote:job at {remote.port}",))
    assert child.metadata == {"job": "job-1", "port": remote.port}
    await remote.ask(op="finish")
    assert await handle.result() == "completed"
    assert (child.status, remote.node.fate, remote.told) == ("completed", "finished", [])


async def test_one_that_answers_is_stopped_and_says_so_itself(remote):
    handle = await started(remote, "answers")
    receipt = await handle.stop(reason="enough")
    assert receipt.in_flight == (f"remote:job at {remote.port}",)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, told(handle.run.receipt)) == ("stopped", "signal", [Fate.CANCELLED])
    ((order,), said) = remote.told, await remote.ask(op="told")
    assert (order.mode, order.reason.message) == ("graceful", "enough")
    assert 0 < order.grace <= 10
    assert [one["mode"] for one in said["told"]] == ["graceful"]


async def test_the_stop_of_the_node_alone_reaches_its_caller_as_run_stopped(remote):
    caught = []

    async def parent():
        try:
            await remote.call("answers")
        except stoppable.RunStopped as error:
            caught.append(error)
        return "went on"

    handle = await stoppable.spawn(parent)
    await remote.seen.wait()
    remote.node.run.stop()
    assert await handle.result() == "went on"
    assert [error.run_id for error in caught] == [remote.node.run.id]


async def test_one_that_refuses_and_goes_on_is_abandoned_and_its_late_end_is_told(remote):
    handle = await started(remote, "refuses", QUICK)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("lost", "lost")
    final = handle.run.receipt
    assert told(final) == [Fate.ABANDONED]
    assert list(dict.fromkeys(order.mode for order in remote.told)) == ["graceful", "immediate", "kill"]
    assert {order.grace for order in remote.told[1:]} == {0.0}
    assert remote.node.run.children == ()
    remote.node.ended("finished")
    assert handle.run.receipt == final
    await until(lambda: not handle.run.is_alive())


async def test_one_that_refuses_and_then_finishes_was_too_late_to_stop(remote):
    handle = await started(remote, "refuses")
    await handle.stop()
    await until(lambda: remote.told)
    await remote.ask(op="finish")
    outcome = await handle.outcome()
    receipt = handle.run.receipt
    assert (outcome.status, receipt.too_late, told(receipt)) == ("completed", True, [Fate.FINISHED])


async def test_one_that_hangs_when_it_is_told_is_unreachable(remote):
    handle = await started(remote, "hangs", QUICK)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, told(handle.run.receipt)) == ("lost", [Fate.UNREACHABLE])
    assert [order.mode for order in remote.told] == ["graceful", "immediate", "kill"]


async def test_one_that_dies_when_it_is_told_is_unreachable_and_its_caller_does_not_claim_an_end(remote):
    handle = await started(remote, "dies", QUICK)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, told(handle.run.receipt)) == ("lost", [Fate.UNREACHABLE])


async def test_one_that_is_frozen_is_unreachable(remote):
    handle = await started(remote, "answers", QUICK)
    remote.process.send_signal(signal.SIGSTOP)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, told(handle.run.receipt)) == ("lost", [Fate.UNREACHABLE])


async def test_one_whose_address_is_not_known_yet_is_told_late_with_the_grace_that_is_left(remote):
    handle = await stoppable.spawn(remote.call, "shy", policy=Policy(grace=30))
    await remote.begun.wait()
    stopping = asyncio.create_task(handle.stop())
    await until(lambda: handle.run.token.stopped)
    await asyncio.sleep(0.05)  # some of the grace goes by
    assert remote.told == []
    await remote.ask(op="reveal")
    outcome = await handle.outcome()
    assert (outcome.status, told(handle.run.receipt)) == ("stopped", [Fate.CANCELLED])
    assert 0 < remote.told[0].grace < 29.96
    await stopping


async def test_one_whose_address_never_becomes_known_is_unreachable(remote):
    handle = await stoppable.spawn(remote.call, "shy", policy=QUICK)
    await remote.begun.wait()
    await handle.stop()
    assert (await handle.outcome()).status == "lost"
    assert (told(handle.run.receipt), remote.told) == ([Fate.UNREACHABLE], [])


async def test_one_that_finishes_in_spite_of_it_was_too_late_to_stop(remote):
    handle = await started(remote, "finishes")
    await handle.stop()
    outcome = await handle.outcome()
    receipt = handle.run.receipt
    assert (outcome.status, receipt.too_late, told(receipt)) == ("completed", True, [Fate.FINISHED])


async def test_one_that_could_not_be_asked_is_asked_again(remote):
    handle = await started(remote, "fails once")
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"
    assert told(handle.run.receipt) == [Fate.CANCELLED]
    assert [order.mode for order in remote.told] == ["graceful", "graceful"]


async def test_one_that_takes_its_time_is_told_the_harder_mode_at_once(remote):
    handle = await started(remote, "takes its time")
    first = await handle.stop()
    assert first.acknowledged_at is not None
    await handle.stop("immediate")
    await until(lambda: "immediate" in [order.mode for order in remote.told])
    await remote.ask(op="finish")
    assert (await handle.outcome()).status == "stopped"
    assert told(handle.run.receipt) == [Fate.FINISHED]


async def test_a_remote_that_breaks_off_without_a_stop_is_told_to_stop_and_the_run_does_not_claim_its_end(remote):
    handle = await started(remote, "answers", QUICK)
    remote.process.kill()
    with pytest.raises(stoppable.RunFailed) as caught:
        await handle.result()
    lost = caught.value.__cause__
    assert isinstance(lost, stoppable.RunLost)
    assert isinstance(lost.outcome.error, ConnectionError)


async def test_a_remote_that_was_never_reached_fails_as_it_would_without_us(remote):
    remote.process.kill()
    remote.process.wait()
    with pytest.raises(stoppable.RunFailed) as caught:
        await (await stoppable.spawn(remote.call, "answers")).result()
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_a_stopped_run_starts_no_remote():
    async def body():
        run = stoppable.current_run()
        run.stop()
        async with stoppable.remote("job", tell=print, ref={}):
            raise AssertionError("never entered")

    assert (await (await stoppable.spawn(body)).outcome()).status == "stopped"


async def test_somebody_elses_cancel_is_not_held_up_and_the_remote_is_told_all_the_same(remote):
    async def body():
        return await remote.call("answers")

    task = asyncio.create_task(body())
    await remote.seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: remote.node.run.outcome)
    assert (remote.node.fate, remote.node.run.status) == ("cancelled", "stopped")


async def test_what_a_remote_is_told_is_in_the_log_and_its_address_in_the_record(remote):
    async with Supervisor() as supervisor:
        handle = await supervisor.start(remote.call, "fails once")
        await remote.seen.wait()
        await handle.stop()
        await handle.outcome()
        tree = await supervisor.tree(handle.id)
        events = [event async for event in supervisor.events(tree[1].id)]
    said = [event.data["data"] for event in events if event.data.get("name") == "remote"]
    assert said == [
        {"mode": "graceful", "answer": "ConnectionError: it could not be asked"},
        {"mode": "graceful", "answer": "cancelled"},
    ]
    assert [event.data["metadata"]["job"] for event in events if event.type == "annotated"] == ["job-1"]


# For blocking code, and what is refused


def test_blocking_code_has_remote_nodes_too():
    asked, told_modes = threading.Event(), []

    def tell(stop):
        told_modes.append(stop.mode)
        return "cancelled"

    def body():
        with stoppable.remote("job", tell=tell, ref={"id": "1"}):
            asked.set()
            stoppable.sync.sleep(30)

    handle = stoppable.sync.spawn(body)
    assert asked.wait(30)
    handle.stop()
    assert handle.outcome().status == "stopped"
    assert (told_modes, told(handle.run.receipt)) == (["graceful"], [Fate.CANCELLED])


async def test_a_plain_function_that_only_makes_a_coroutine_is_awaited(remote):
    told_modes = []

    async def tell(stop, _):
        told_modes.append(stop.mode)
        return "cancelled"

    async def body():
        async with stoppable.remote("job", tell=lambda stop: tell(stop, 1), ref={}):
            await stoppable.sleep(30)

    handle = await stoppable.spawn(body)
    await until(lambda: handle.run.children and handle.run.children[0].in_flight)
    await handle.stop()
    assert ((await handle.outcome()).status, told_modes) == ("stopped", ["graceful"])


def test_wrong_arguments_are_refused():
    with pytest.raises(InvalidArgument, match="tell is None"):
        stoppable.remote("job", tell=None)

    async def tell(stop):
        return None

    with pytest.raises(InvalidArgument, match="is async"), stoppable.remote("job", tell=tell):
        pass


@pytest.mark.parametrize("fate", ["unreachable", "abandoned", "gone"])
async def test_only_an_end_is_an_end(fate):
    async with stoppable.remote("job", tell=print, ref={}) as node:
        with pytest.raises(InvalidArgument, match="is not a fate of remote work: use finished"):
            node.ended(fate)
        node.ended("killed")
        node.ended("finished")  # the first word counts
        assert (node.fate, repr(node)) == ("killed", "<RemoteNode 'job' killed>")


async def test_a_node_cannot_span_the_yields_of_a_generator_that_somebody_reads():
    async def chunks():
        async with stoppable.remote("job", tell=print, ref={}):
            yield 1

    with pytest.raises(stoppable.StoppableError, match=r"remote\(\) cannot span the yields of .*chunks"):
        _ = [chunk async for chunk in chunks()]

    def blocking():
        with stoppable.remote("job", tell=print, ref={}):
            yield 1

    with pytest.raises(stoppable.StoppableError, match=r"remote\(\) cannot span"):
        list(blocking())


async def test_one_that_has_ended_when_its_address_becomes_known_is_not_told():
    """Whoever has seen the end may close the client, which a call would open again."""
    told, heard = [], asyncio.Event()

    async def tell(stop):
        told.append(stop)

    async def hear(stop):
        heard.set()
        return "cancelled"

    async def first():
        async with stoppable.remote("first", tell=tell) as node:
            await heard.wait()
            node.identify(job="1")
            node.ended("finished")
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def second():
        async with stoppable.remote("second", tell=hear, ref={}):
            await heard.wait()

    async def both():
        await asyncio.gather(first(), second(), return_exceptions=True)

    async with Supervisor() as supervisor:
        handle = await supervisor.start(both)
        await until(lambda: len(handle.run.children) == 2)
        await handle.stop("graceful")
        await handle.outcome()
    assert (heard.is_set(), told) == (True, [])


class Parked:
    """Work that waits for its caller, followed by a task of its own, as an adapter does."""

    def __init__(self):
        self.begun, self.told = asyncio.Event(), []

    async def tell(self, stop):
        self.told.append(str(stop.mode))
        return "cancelled"

    async def follow(self):
        async with stoppable.remote("job", tell=self.tell, ref={"job": 1}) as node:
            self.node = node
            node.park()
            self.begun.set()
            await node.gone()

    async def begin(self):
        self.task = asyncio.create_task(self.follow())
        await self.begun.wait()


async def test_a_run_that_ends_by_itself_does_not_wait_for_work_that_waits_for_its_caller():
    parked = Parked()
    handle = await stoppable.spawn(parked.begin)
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "completed"
    assert (parked.told, parked.node.fate) == ([], Fate.FINISHED)


async def test_a_stop_reaches_work_that_waits_for_its_caller():
    parked = Parked()

    async def agent():
        await parked.begin()
        await stoppable.sleep(60)

    handle = await stoppable.spawn(agent)
    await parked.begun.wait()
    await handle.stop()
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "stopped"
        await asyncio.wait({parked.task})
        parked.task.exception()
    assert (parked.told, parked.node.fate) == (["graceful"], Fate.CANCELLED)


async def test_work_that_waits_for_a_caller_which_fails_is_stopped():
    parked = Parked()

    async def agent():
        await parked.begin()
        raise ValueError("no")

    handle = await stoppable.spawn(agent)
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "failed"
        with pytest.raises(stoppable.RunStopped):
            await parked.task
    assert parked.node.fate is Fate.CANCELLED


async def test_work_that_goes_on_keeps_its_run_open():
    parked = Parked()

    async def agent():
        await parked.begin()
        parked.node.resume()

    handle = await stoppable.spawn(agent)
    await until(lambda: parked.begun.is_set() and handle.run.children)
    await asyncio.sleep(0.05)
    assert handle.status == "running"
    parked.node.ended()
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "completed"


async def test_work_that_its_service_cannot_end_is_given_up_at_once():
    begun = asyncio.Event()

    async def agent():
        async def tell(stop):
            node.give_up()

        async with stoppable.remote("job", tell=tell, ref={"job": 1}) as node:
            node.give_up()  # not stopped: it changes nothing
            begun.set()
            await node.gone()
            stoppable.check()

    patient = Policy(grace=100.0, interrupt=100.0, cancel=100.0, kill=100.0)
    handle = await stoppable.spawn(agent, policy=patient)
    await begun.wait()
    assert handle.status == "running"
    await handle.stop()
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "lost"
    assert [str(node.fate) for node in handle.run.receipt.entries if node.kind == "remote"] == ["abandoned"]

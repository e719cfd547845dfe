"""A run that was started by a supervisor can be found, stopped by its id, and is never forgotten."""

import asyncio
import contextlib
import functools
import threading
import time

import pytest
from tests.waiting import until

import stoppable
from stoppable import Filter, Limits, Policy, Supervisor
from stoppable.errors import InvalidArgument, RunConflict, RunFailed, RunHeld, RunNotFound, RunStopped

from .kept_agents import forever, raises, steps, types

# Starting


async def test_what_is_kept_of_a_run_tells_how_it_ended(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(steps, 3, owner="me", labels={"team": "a"})
        assert await handle.result() == 3
        record = await supervisor.get(handle.id)
    assert (record.name, record.owner, record.labels, record.status) == ("steps", "me", {"team": "a"}, "completed")
    assert (record.outcome.result, record.outcome.partial, record.receipt) == (3, "0 1 2 ", None)
    assert record.created_at <= record.started_at <= record.ended_at


async def test_an_error_is_kept_as_text_and_the_starter_gets_it_as_it_is(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(raises, LookupError("no such page"))
        with pytest.raises(RunFailed) as caught:
            await handle.result()
        record = await handle.record()
    assert isinstance(caught.value.__cause__, LookupError)
    assert (record.status, record.outcome.error.type) == ("failed", "LookupError")
    assert (record.outcome.error.message, "raises" in record.outcome.error.trace) == ("no such page", True)


@pytest.mark.parametrize("isolation", ["auto", "thread", "process"])
async def test_an_agent_runs_where_it_is_asked_to(store, isolation):
    async with Supervisor(store) as supervisor:
        asynchronous = await supervisor.start(functools.partial(steps), 2, isolation=isolation)
        blocking = await supervisor.start(where, isolation=isolation)
        assert await asynchronous.result() == 2
        name, process = await blocking.result()
    assert name != threading.current_thread().name or process != 0


def where():
    return threading.current_thread().name, 1


@pytest.mark.parametrize(
    ("agent", "args", "options", "says"),
    [
        (where, (), {"isolation": "task"}, "cannot run in a task"),
        (where, (), {"isolation": "elsewhere"}, "use auto, task, thread, process"),
        (where, (), {"on_disconnect": "die"}, "use keep, stop"),
        (where, (), {"run_id": "a b"}, "is not a valid run id"),
        (where, (), {"run_id": "x" * 129}, "is not a valid run id"),
        (where, (), {"labels": {"a": 1}}, "invalid label"),
        (where, (), {"labels": {str(n): "" for n in range(33)}}, "up to 32"),
        (where, (), {"policy": {"grace": 1}}, r"use stoppable\.Policy"),
        (where, (), {"limits": {"seconds": 1}}, r"use stoppable\.Limits"),
        (where, (), {"owner": ""}, "invalid owner"),
        (where, ("one too many",), {}, "cannot be called like that"),
        ("where", (), {}, "is not an agent"),
    ],
)
async def test_a_start_that_makes_no_sense_is_an_error_and_leaves_nothing(store, agent, args, options, says):
    async with Supervisor(store) as supervisor:
        with pytest.raises(InvalidArgument, match=says):
            await supervisor.start(agent, *args, **options)
        assert (await supervisor.list()).runs == ()


async def test_a_start_can_be_repeated_and_runs_once(store):
    async with Supervisor(store) as supervisor:
        go = asyncio.Event()
        first = await supervisor.start(steps, 1, go, run_id="mine")
        with pytest.raises(RunConflict):
            await supervisor.start(steps, 2, run_id="mine")
        again = await supervisor.start(steps, 3, run_id="other")
        same = await supervisor.start(steps, 3, run_id="other")
        go.set()
        assert (await first.result(), await again.result(), await same.result()) == (1, 3, 3)
        assert len((await supervisor.list()).runs) == 2


async def test_a_start_that_is_cancelled_while_it_is_registered_leaves_no_run_that_waits_for_ever(store):
    began = False

    async def agent():
        nonlocal began
        began = True

    async with Supervisor(SlowStore(store)) as supervisor:
        starting = asyncio.create_task(supervisor.start(agent, run_id="gone"))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        supervisor._core.store.let_go()
        record = await record_of(supervisor, "gone")
    assert (record.status, began) == ("stopped", False)


async def record_of(supervisor, run_id):
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(RunNotFound):
                record = await supervisor.get(run_id)
                if record.over:
                    return record
            await asyncio.sleep(0.005)


class SlowStore:
    """A store whose registrations are answered when the test says so."""

    def __init__(self, inner):
        self._inner = inner
        self._held = []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def register(self, record, request):
        from stoppable.stores.base import StoreFuture

        reply = StoreFuture()
        self._held.append((reply, lambda: self._inner.register(record, request)))
        return reply

    def let_go(self):
        from stoppable.stores.base import settle

        for reply, call in self._held:
            settle([(reply, call().result(), None)])


async def test_a_start_that_is_refused_inside_a_run_leaves_nothing_that_the_run_would_wait_for(store):
    async def parent(supervisor):
        await supervisor.hold(agent="steps")
        with pytest.raises(RunConflict):
            await supervisor.start(forever, run_id="taken")
        with pytest.raises(RunHeld):
            with stoppable.detached():
                await supervisor.start(steps, 1)
        return "done"

    async with Supervisor(store) as supervisor:
        taken = await supervisor.start(steps, 1, run_id="taken")
        await taken.outcome()
        async with asyncio.timeout(30):
            assert await (await supervisor.start(parent, supervisor)).result() == "done"


@pytest.mark.parametrize("isolation", ["auto", "thread", "process"])
async def test_what_a_generator_agent_yields_is_in_its_events(store, isolation):
    async with Supervisor(store) as supervisor:
        for agent in (counts, counts_blocking):
            handle = await supervisor.start(agent, 3, isolation=isolation)
            assert [item async for item in handle.stream()] == [0, 1, 2]
            told = [event.data async for event in handle.events() if event.type == "progress"]
            assert told == [{"name": "item", "data": {"value": number}} for number in range(3)]


async def counts(count):
    for number in range(count):
        yield number


def counts_blocking(count):
    yield from range(count)


# Stopping


async def test_exactly_the_run_that_was_named_is_stopped(store):
    async with Supervisor(store) as supervisor:
        go = asyncio.Event()
        a, b, c = [await supervisor.start(steps, 3, go) for _ in range(3)]
        await until(lambda: all(handle.status == "running" for handle in (a, b, c)))
        receipt = await supervisor.stop(b.id, reason="enough", actor="anna")
        assert (receipt.answer, receipt.status, receipt.in_flight) == ("accepted", "stopping", ("tool:step",))
        go.set()
        assert [(await handle.outcome()).status for handle in (a, b, c)] == ["completed", "stopped", "completed"]
        record = await supervisor.get(b.id)
    assert (record.status, record.outcome.partial, record.outcome.clean) == ("stopped", "0 ", True)
    assert (record.stop.reason.message, record.stop.reason.actor) == ("enough", "anna")
    assert record.receipt.final
    assert [(node.kind, node.fate) for node in record.receipt.entries] == [("run", "stopped"), ("tool", "finished")]
    times = record.receipt
    assert times.requested_at <= times.acknowledged_at <= times.delivered_at <= times.ended_at
    assert abs(times.ended_at - time.time()) < 60


async def test_a_stop_again_changes_nothing_and_a_higher_mode_escalates(store):
    async with Supervisor(store) as supervisor:
        go = asyncio.Event()
        handle = await supervisor.start(steps, 1, go)
        await until(lambda: handle.status == "running")
        answers = [
            (await supervisor.stop(handle.id, mode)).answer
            for mode in ("graceful", "graceful", "cooperative", "immediate")
        ]
        assert answers == ["accepted", "already_stopping", "already_stopping", "escalated"]
        await handle.outcome()
        late = await supervisor.stop(handle.id, "kill")
        assert (late.answer, late.status, late.mode) == ("already_finished", "stopped", "immediate")
        assert (await handle.record()).status == "stopped"
        told = [event.data async for event in supervisor.events(handle.id) if event.data.get("status") == "stopping"]
        assert [data["mode"] for data in told] == ["graceful", "immediate"]


async def test_a_stop_waits_for_the_end_if_it_is_asked_to(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(forever)
        receipt = await supervisor.stop(handle.id, wait=30)
        assert (receipt.final, receipt.status, receipt.answer) == (True, "stopped", "accepted")
        stubborn = await supervisor.start(ignores, policy=Policy(grace=60))
        await until(lambda: stubborn.status == "running")
        receipt = await supervisor.stop(stubborn.id, wait=0.05)
        assert (receipt.final, receipt.status) == (False, "stopping")
        await supervisor.stop(stubborn.id, "immediate")


async def ignores():
    await asyncio.sleep(60)


async def test_what_cannot_be_stopped_is_a_clear_error(store):
    async with Supervisor(store) as supervisor:
        with pytest.raises(RunNotFound, match="no run 'nobody'"):
            await supervisor.stop("nobody")
        handle = await supervisor.start(forever, owner="me")
        with pytest.raises(RunNotFound):
            await supervisor.stop(handle.id, owner="you")
        with pytest.raises(InvalidArgument, match="unknown mode"):
            await supervisor.stop(handle.id, "politely")
        with pytest.raises(InvalidArgument, match="wait is"):
            await supervisor.stop(handle.id, wait=-1)
        with pytest.raises(InvalidArgument, match="grace is"):
            await supervisor.stop(handle.id, grace=-1)
        with pytest.raises(InvalidArgument, match="an empty selector"):
            await supervisor.stop_where()
        assert handle.status in {"pending", "running"}


async def test_a_stop_may_come_before_its_run(store):
    async with Supervisor(store) as supervisor:
        receipt = await supervisor.stop("soon", if_unknown="wait", reason="changed my mind")
        assert (receipt.answer, receipt.status) == ("accepted", "pending")
        handle = await supervisor.start(forever, run_id="soon")
        with pytest.raises(RunStopped):
            await handle.result()
        record = await handle.record()
        assert (record.status, record.started_at, record.outcome.reason.message) == ("stopped", None, "changed my mind")
        assert (await supervisor.stop("later", if_unknown="wait", wait=5)).status == "pending"
        with pytest.raises(RunStopped):
            async with supervisor.open_run("block", run_id="later"):
                raise AssertionError("its body never runs")


async def test_a_stop_from_inside_is_kept_too(store):
    async def stops_itself():
        stoppable.current_run().stop(reason="I have had enough")
        await stoppable.sleep(60)

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(stops_itself)
        await handle.outcome()
        record = await handle.record()
        actions = [entry.reason for entry in await supervisor.audit()]
    assert (record.status, record.stop.reason.message) == ("stopped", "I have had enough")
    assert actions == ["I have had enough"]


async def test_a_stop_of_a_run_above_that_is_not_kept_is_kept_below(store):
    async with Supervisor(store) as supervisor:
        with pytest.raises(RunStopped):
            async with stoppable.open_run("above") as above:
                handle = await supervisor.start(forever)
                await until(lambda: handle.status == "running")
                above.stop(reason="from above")
                await handle.outcome()
                stoppable.check()
        record = await handle.record()
    assert (record.status, record.stop.reason.message) == ("stopped", "from above")


async def test_a_limit_is_a_stop_of_its_own_kind(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(steps, 10, limits=Limits(boundaries={"tool": 3}))
        timed = await supervisor.start(forever, limits=Limits(seconds=0.01))
        assert [(await one.outcome()).status for one in (handle, timed)] == ["stopped", "stopped"]
        records = [await one.record() for one in (handle, timed)]
    assert [record.stop.reason.kind for record in records] == ["limit", "limit"]
    for record in records:
        assert record.stop_requested_at <= record.receipt.acknowledged_at <= record.receipt.ended_at
    assert (records[0].limits.boundaries, records[0].outcome.partial) == ({"tool": 3}, "0 1 2 ")


async def test_children_are_kept_with_their_parent_and_stopped_with_it(store):
    async def parent():
        for _ in range(3):
            await stoppable.spawn(forever)
        await stoppable.sleep(60)

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(parent, owner="me", labels={"team": "a"})
        bystander = await supervisor.start(forever, owner="me")
        async with asyncio.timeout(30):
            while len(await supervisor.tree(handle.id)) < 4:
                await asyncio.sleep(0.005)
        await supervisor.stop(handle.id)
        await handle.outcome()
        tree = await supervisor.tree(handle.id)
        assert [record.name for record in tree] == ["parent", "forever", "forever", "forever"]
        assert {(record.status, record.owner, record.labels["team"]) for record in tree} == {("stopped", "me", "a")}
        assert {(record.root_id, record.parent_id) for record in tree[1:]} == {(handle.id, handle.id)}
        assert bystander.status == "running"
        listed = (await supervisor.list(Filter(parent_id=handle.id))).runs
        assert {record.id for record in listed} == {record.id for record in tree[1:]}


# Many at once


async def test_a_bulk_stop_with_a_hold_leaves_nothing_running_and_lets_nothing_in(store):
    async with Supervisor(store) as supervisor:
        mine = [await supervisor.start(forever, owner="me") for _ in range(5)]
        other = await supervisor.start(forever, owner="you")
        preview = await supervisor.stop_where(owner="me", dry_run=True)
        assert {receipt.run_id for receipt in preview} == {handle.id for handle in mine}
        assert {handle.status for handle in mine} <= {"pending", "running"}
        receipts = await supervisor.stop_where(
            owner="me", hold=True, reason="runaway", actor="ops", idempotency_key="k1"
        )
        assert len(receipts) == 5
        again = await supervisor.stop_where(owner="me", hold=True, reason="runaway", actor="ops", idempotency_key="k1")
        assert (again.hold.id, len(again)) == (receipts.hold.id, 5)
        with pytest.raises(RunHeld, match="runaway") as caught:
            await supervisor.start(forever, owner="me")
        assert caught.value.hold_id == receipts.hold.id
        assert {(await handle.outcome()).status for handle in mine} == {"stopped"}
        assert other.status == "running"
        assert [hold.id for hold in await supervisor.holds()] == [receipts.hold.id]
        await supervisor.release(receipts.hold.id, actor="ops")
        assert await (await supervisor.start(steps, 1, owner="me")).result() == 1
        actions = [(entry.action, entry.actor) for entry in await supervisor.audit()]
        assert actions == [("stop", "ops"), ("release", "ops")]


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_tree_stop_while_children_are_spawned_at_full_speed_leaves_no_live_descendant(store):
    async def spawns():
        for _ in range(20):  # before, while and after the store marks the tree
            await stoppable.spawn(forever)
            await asyncio.sleep(0)
        await forever()

    async with Supervisor(store) as supervisor:
        for round_ in range(200):
            handle = await supervisor.start(spawns)
            for _ in range(round_ % 25):
                await asyncio.sleep(0)
            await supervisor.stop(handle.id)
            assert (await handle.outcome()).status == "stopped"
            assert not handle.run.is_alive()
            statuses = {record.status for record in await supervisor.tree(handle.id)}
            assert statuses == {"stopped"}


# Around existing code


async def test_existing_code_is_a_run_that_can_be_stopped_by_its_id(store):
    async with Supervisor(store) as supervisor:
        with pytest.raises(RunStopped):
            async with supervisor.open_run("chat", owner="me", run_id="chat-1") as run:
                stoppable.set_partial("half an answer")
                await supervisor.stop("chat-1", reason="enough")
                stoppable.check()
        record = await supervisor.get("chat-1")
        assert (run.id, record.status, record.outcome.partial) == ("chat-1", "stopped", "half an answer")
        with pytest.raises(ZeroDivisionError):
            async with supervisor.open_run("broken", run_id="chat-2"):
                raise ZeroDivisionError
        assert (await supervisor.get("chat-2")).status == "failed"
        with pytest.raises(RunConflict):
            async with supervisor.open_run("chat", owner="me", run_id="chat-1"):
                pass


# Its end


async def test_leaving_stops_what_still_runs_and_writes_it_down(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(forever)
    record = (await supervisor._core.store.get(handle.id)) if store_is_memory(store) else None
    assert handle.status == "stopped"
    if record is not None:
        assert (record.status, record.stop.reason.kind) == ("stopped", "shutdown")


def store_is_memory(store):
    return type(store).__name__ == "MemoryStore"


async def test_a_handle_by_id_tells_what_is_kept(store):
    async with Supervisor(store) as supervisor:
        done = await supervisor.start(steps, 2)
        broken = await supervisor.start(raises, ValueError("no"))
        stopped = await supervisor.start(forever)
        await stopped.stop()
        for handle in (done, broken, stopped):
            await handle.outcome()
        assert await supervisor.handle(done.id).result() == 2
        with pytest.raises(RunFailed) as caught:
            await supervisor.handle(broken.id).result()
        assert str(caught.value.__cause__) == "ValueError: no"
        with pytest.raises(RunStopped):
            await supervisor.handle(stopped.id).result()
        by_id = supervisor.handle(done.id)
        assert (by_id.id, (await by_id.stop()).answer) == (done.id, "already_finished")
        with pytest.raises(InvalidArgument, match="not executed by this process"):
            _ = by_id.run
        with pytest.raises(InvalidArgument, match="use events"):
            _ = [item async for item in by_id.stream()]
        assert await types(supervisor, done.id, after=3) == [event.type async for event in by_id.events(after=3)]

"""Random lives of stored runs, each step compared with the model of the contract: I1, I2, I4–I9.

A store plugs in with a subclass that says how one is made:

    class MemoryMachine(StoreMachine):
        def make_store(self, clock):
            return MemoryStore(clock)

    TestMemoryMachine = MemoryMachine.TestCase
    TestMemoryMachine.settings = SETTINGS
    pytestmark = MAY_TAKE_LONG
"""

import os
import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Mode, Reason, ReasonKind, Status
from stoppable.errors import Fenced, HoldNotFound, RunConflict, RunHeld, RunNotFound
from stoppable.records import (
    Draft,
    EventType,
    Filter,
    OutcomeRecord,
    RunRecord,
    RunSummary,
    Selector,
    StopIntent,
    StopRequest,
)
from stoppable.stores.base import NEXT_TURN_SECONDS, TOMBSTONE_SECONDS, WorkerInfo
from stoppable.testing import StoreClock

from .model import MODES, TERMINAL, Model, harder

# Random on every run; what failed is printed as a blob that replays it.
LIVES = int(os.environ.get("STOPPABLE_LIVES", "120"))  # more where a mistake has to be found
SETTINGS = settings(max_examples=LIVES, stateful_step_count=40, deadline=None, print_blob=True)
MAY_TAKE_LONG = pytest.mark.timeout(90)  # it takes four seconds where nobody else computes
MAX_RUNS, MAX_WORKERS = 12, 5

OWNERS = st.sampled_from([None, "ann", "bob"])
KEYS = st.sampled_from([None, None, "k", "l"])
A_MODE = st.sampled_from(MODES)
# A lease ends between two ticks, so that no test hangs on what happens at that very moment.
A_TTL = st.sampled_from([5.5, 10.5, 100.5])
EPOCH = st.sampled_from(["right", "right", "right", "old", "new"])


def one_of(candidates):
    return st.runner().flatmap(lambda machine: st.sampled_from(candidates(machine)))


def needs(candidates):
    return precondition(lambda machine: bool(candidates(machine)))


def known(machine) -> list[str]:
    return list(machine.model.runs)


def live(machine) -> list[str]:
    return machine.model.live()


def workers(machine) -> list[str]:
    return machine.model.workers()


def open_workers(machine) -> list[str]:
    return list(machine.model.leases)


def holds(machine) -> list[str]:
    return [*machine.model.holds, "no hold"]


has_room = precondition(lambda machine: len(machine.model.runs) < MAX_RUNS)


class StoreMachine(RuleBasedStateMachine):
    def make_store(self, clock):
        raise NotImplementedError

    def __init__(self):
        super().__init__()
        self.clock = StoreClock()
        self.began = self.clock()
        self.store = self.make_store(self.clock)
        self.store.open()
        self.model = Model()
        self.records = {}
        self.logs = {}

    def teardown(self):
        """At the end every stop of a worker that lives is delivered, and what is left of the others is reaped."""
        try:
            for worker in list(self.model.leases):
                self.heartbeat(worker, 100.5)
            self.reap(expired=True, limit=100)
        finally:
            self.store.close()

    # Talking to the store

    def call(self, call, *args, **kwargs):
        """The answer, or the error if it is one of ours."""
        try:
            return call(*args, **kwargs).result(15)
        except (Fenced, HoldNotFound, RunConflict, RunHeld, RunNotFound) as error:
            return error

    def epoch(self, name, which):
        right = self.records[name].epoch
        return {"right": right, "old": right - 1, "new": right + 1}[which]

    def see(self, *touched):
        """Compare all runs with the model; those that a step did not touch are as they were (I6)."""
        runs = self.store.query(Filter(), None, 1000).result(15).runs
        assert [record.id for record in runs] == list(self.model.runs)[::-1], "newest first"
        records = {summary.id: self.store.get(summary.id).result(15) for summary in runs}
        assert [RunSummary.of(record) for record in records.values()] == list(runs)
        for name, record in records.items():
            before = self.records.get(name)
            self.compare(name, record, before)
            if name in touched or before is None:
                self.see_log(record)
            else:
                assert record == before, "I6"
            parent = records.get(record.parent_id)
            if parent is not None and parent.stop is not None and not record.over:
                assert record.stop is not None, "I5"
                assert not harder(record.stop.mode, parent.stop.mode), "I5"
        self.records = records

    def compare(self, name, record, before):
        run = self.model.runs[name]
        assert (record.status, record.acknowledged) == (run["status"], run["acknowledged"]), name
        kept = (record.worker, record.parent_id, record.owner, record.key)
        assert kept == (run["worker"], run["parent"], run["owner"], run["key"])
        assert (record.stop is None) == (run["stop"] is None)
        if record.stop is not None and run["stop"][1] != "its parent":
            assert (record.stop.mode, record.stop.reason.message) == run["stop"], "G3, G6"
        assert record.over == (record.outcome is not None) == (record.ended_at is not None)
        if record.over:
            assert record.outcome.status == record.status
            assert record.stop is None or record.receipt.final
        if before is not None and before.over:
            kept = (record.status, record.outcome, record.receipt, record.epoch, record.ended_at)
            assert kept == (before.status, before.outcome, before.receipt, before.epoch, before.ended_at), "I1"
        if before is not None and record.over and not before.over:
            assert record.epoch > before.epoch, "G15"

    def see_log(self, record):
        log = list(self.store.read(record.id, 0, 1000).result(15))
        assert [event.seq for event in log] == list(range(1, len(log) + 1)), "I7"
        assert record.last_event == len(log)
        before = self.logs.get(record.id, [])
        assert log[: len(before)] == before, "a log is only added to"
        types = [event.type for event in log]
        assert types.count(EventType.DONE) == record.over
        if record.over:
            assert set(types[types.index(EventType.DONE) + 1 :]) <= {EventType.LATE}, "I4"
        self.logs[record.id] = log

    # Workers

    @initialize(families=st.lists(st.sampled_from(["alone", "child", "child elsewhere"]), min_size=1, max_size=3))
    def begin(self, families):
        """Two workers with runs, so that the steps have something to happen to."""
        self.open_worker(100.5)
        self.open_worker(5.5)
        for number, family in enumerate(families):
            root = f"r{len(self.model.runs)}"
            self.register("w0", None, ("ann", "bob")[number % 2])
            self.append(root, "running", "right")
            if family != "alone":
                self.register("w1" if "elsewhere" in family else "w0", root, ("ann", "bob")[number % 2])

    @precondition(lambda self: len(self.model.workers()) < MAX_WORKERS)
    @rule(ttl=A_TTL)
    def open_worker(self, ttl):
        worker = f"w{len(self.model.workers())}"
        assert self.call(self.store.open_worker, WorkerInfo(id=worker, host="machine"), ttl) is None
        self.model.leases[worker] = self.model.now + ttl
        self.see()

    @needs(workers)
    @rule(worker=one_of(workers), ttl=A_TTL)
    def open_again(self, worker, ttl):
        found = self.call(self.store.open_worker, WorkerInfo(id=worker, host="machine"), ttl)
        assert isinstance(found, Fenced) == (worker not in self.model.leases)
        if worker in self.model.leases:
            self.model.leases[worker] = self.model.now + ttl
        self.see()

    @needs(workers)
    @rule(worker=one_of(workers), ttl=A_TTL)
    def heartbeat(self, worker, ttl):
        found = self.call(self.store.heartbeat, worker, ttl)
        if worker not in self.model.leases:
            assert isinstance(found, Fenced)
            return
        told = {
            intent.run_id: (intent.stop.mode.value, re.sub("^its parent .*", "its parent", intent.stop.reason.message))
            for intent in found
        }
        assert told == self.model.intents(worker), "I2"
        self.model.leases[worker] = self.model.now + ttl
        self.see()

    @needs(open_workers)
    @rule(worker=one_of(open_workers))
    def close_worker(self, worker):
        self.call(self.store.close_worker, worker)
        del self.model.leases[worker]
        self.model.closed.add(worker)
        self.see()

    @rule(seconds=st.sampled_from([1, 4, 8, 30]))
    def tick(self, seconds):
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule(expired=st.booleans(), limit=st.sampled_from([100, 100, 1]))
    def reap(self, expired, limit):
        expected = self.model.reapable(expired=expired)
        if expired:
            gone = self.model.expired()
            self.model.fenced |= gone
            for worker in gone:
                del self.model.leases[worker]
        reaped = {record.id: record.status for record in self.call(self.store.reap, limit, expired=expired)}
        assert reaped.items() <= expected.items(), "I9"
        assert len(reaped) == min(limit, len(expected))
        for name, status in reaped.items():
            self.model.end(name, status.value, "reaper")
        self.see(*reaped)

    # Runs

    @has_room
    @needs(workers)
    @rule(
        worker=one_of(workers),
        parent=one_of(lambda machine: [None, None, *machine.model.runs]),
        owner=OWNERS,
        has_begun=st.booleans(),
        key=KEYS,
    )
    def register(self, worker, parent, owner, has_begun=False, key=None):
        if has_begun and parent is not None and worker in self.model.leases:
            self.register_begun(worker, parent)
            return
        name = f"r{len(self.model.runs)}"
        if parent is not None:
            owner = self.model.runs[parent]["owner"]
        record = RunRecord(id=name, name="agent", worker=worker, parent_id=parent, owner=owner, key=key)
        found = self.call(self.store.register, record, "request")
        if worker not in self.model.leases:
            assert isinstance(found, Fenced), found
        elif parent is None and self.model.is_held(owner):
            assert isinstance(found, RunHeld), found
        else:
            assert found.created
            self.model.add(name, parent, worker, owner, "request", key)
        self.see(name)

    def register_begun(self, worker, parent):
        """A child that its worker has begun: it gets the stop of its parent, and its end from its worker."""
        name = f"r{len(self.model.runs)}"
        record = RunRecord(id=name, name="agent", worker=worker, parent_id=parent, status=Status.RUNNING)
        found = self.call(self.store.register, record, "request")
        self.model.add_begun(name, parent, worker)
        assert (found.created, found.record.status) == (True, self.model.runs[name]["status"])
        self.see(name)

    @needs(known)
    @rule(name=one_of(known), request=st.sampled_from(["request", "another"]), worker=one_of(workers))
    def register_again(self, name, request, worker):
        owner, parent = self.model.runs[name]["owner"], self.model.runs[name]["parent"]
        record = RunRecord(id=name, name="agent", worker=worker, parent_id=parent, owner=owner)
        found = self.call(self.store.register, record, request)
        if request == "another":
            assert isinstance(found, RunConflict)
        else:
            assert (found.created, found.record) == (False, self.records[name])
        self.see()

    @needs(live)
    @rule(name=one_of(live), what=st.sampled_from(["running", "stopping", "completed", "progress"]), epoch=EPOCH)
    def append(self, name, what, epoch):
        kind = EventType.PROGRESS if what == "progress" else EventType.STATUS
        drafts = [Draft(type=kind, data={"status": what}), Draft(type=EventType.LOG)]
        found = self.call(self.store.append, name, self.epoch(name, epoch), drafts)
        if epoch == "right":
            assert found == self.records[name].last_event + 2, "I7"
            self.model.move(name, what)
            self.see(name)
        else:
            assert isinstance(found, Fenced), "I4"
            self.see()

    @needs(known)
    @rule(name=one_of(known), epoch=EPOCH)
    def append_late(self, name, epoch):
        """As a worker does that has not heard of the end."""
        if self.model.over(name):
            drafts = [Draft(type=EventType.STATUS, data={"status": "running"})]
            assert isinstance(self.call(self.store.append, name, self.epoch(name, epoch), drafts), Fenced), "I4"
            self.see()

    # Stops

    def intent(self, mode):
        return StopIntent(mode=Mode(mode), reason=Reason(kind=ReasonKind.USER, message=f"at {self.model.now}"))

    @needs(known)
    @rule(name=one_of(known), mode=A_MODE, owner=OWNERS, keyed=st.booleans())
    def stop(self, name, mode, owner, keyed):
        """And once more: the same request changes nothing (I8)."""
        key = f"{name} by {owner}" if keyed else None
        intent = self.intent(mode)
        if owner is not None and self.model.runs[name]["owner"] != owner:
            assert isinstance(
                self.call(
                    self.store.request_stop, StopRequest(target=name, intent=intent, idempotency_key=key, owner=owner)
                ),
                RunNotFound,
            )
            self.see()
            return
        expected = self.model.answered.get(key) or self.model.answer(name, mode)
        changed = set() if key in self.model.answered else self.model.stop(name, mode, intent.reason.message)
        for again in (False, True):
            answers = self.call(
                self.store.request_stop, StopRequest(target=name, intent=intent, idempotency_key=key, owner=owner)
            ).answers
            assert [answer.record.id for answer in answers] == [name]
            if not again or keyed:
                assert answers[0].answer == expected, "I8"
            self.see(*(changed if not again else ()))
        if keyed:
            self.model.answered[key] = expected

    @rule(owner=st.sampled_from(["ann", "bob"]), mode=A_MODE, hold=st.booleans(), dry_run=st.booleans())
    def stop_where(self, owner, mode, hold, dry_run):
        intent = self.intent(mode)
        chosen = self.model.topmost([name for name in self.model.live() if self.model.runs[name]["owner"] == owner])
        expected = {name: self.model.answer(name, mode) for name in chosen}
        found = self.call(
            self.store.request_stop,
            StopRequest(target=Selector(owner=owner), intent=intent, hold=hold, dry_run=dry_run),
        )
        assert {answer.record.id: answer.answer.value for answer in found.answers} == expected
        assert (found.hold is not None) == hold
        changed = set()
        if not dry_run:
            for name in chosen:
                changed |= self.model.stop(name, mode, intent.reason.message)
            if hold:
                self.model.holds[found.hold.id] = owner
        assert {hold.id for hold in self.call(self.store.holds)} == set(self.model.holds)
        self.see(*changed)

    @rule(hold=one_of(holds))
    def release(self, hold):
        found = self.call(self.store.release, hold)
        assert isinstance(found, HoldNotFound) == (hold not in self.model.holds)
        self.model.holds.pop(hold, None)

    @has_room
    @rule(mode=A_MODE, may_wait=st.booleans())
    def stop_what_will_come(self, mode, may_wait):
        name = f"r{len(self.model.runs)}"
        intent = self.intent(mode)
        found = self.call(
            self.store.request_stop,
            StopRequest(target=name, intent=intent, if_unknown="wait" if may_wait else "ignore"),
        )
        if not may_wait:
            assert isinstance(found, RunNotFound)
            return
        assert found.answers == ()
        until = self.model.wait(name, mode, intent.reason.message, TOMBSTONE_SECONDS)
        assert found.waits_until - self.began == until

    @rule(key=st.sampled_from(["k", "l"]), mode=A_MODE, if_unknown=st.sampled_from(["wait", None, "ignore"]))
    def stop_key(self, key, mode, if_unknown):
        """The live runs of a conversation, or the next one."""
        intent = self.intent(mode)
        runs = [name for name, run in self.model.runs.items() if run["key"] == key]
        chosen = self.model.topmost([name for name in runs if not self.model.over(name)])
        expected = {name: self.model.answer(name, mode) for name in chosen}
        request = StopRequest(target=Selector(key=key), intent=intent, if_unknown=if_unknown)
        found = self.call(self.store.request_stop, request)
        assert {answer.record.id: answer.answer.value for answer in found.answers} == expected
        changed = set()
        for name in chosen:
            changed |= self.model.stop(name, mode, intent.reason.message)
        waits = not runs if if_unknown is None else if_unknown == "wait"
        assert (found.waits_until is not None) == (waits and not chosen)
        if found.waits_until is not None:
            seconds = NEXT_TURN_SECONDS if runs else TOMBSTONE_SECONDS
            until = self.model.wait(("key", key), mode, intent.reason.message, seconds)
            assert found.waits_until - self.began == until
        self.see(*changed)

    @needs(known)
    @rule(name=one_of(known), mode=A_MODE, epoch=EPOCH)
    def acknowledge(self, name, mode, epoch):
        receipt = Receipt(run_id=name, answer=Answer.ACCEPTED, status=Status.STOPPING, mode=Mode(mode))
        found = self.call(self.store.acknowledge, name, self.epoch(name, epoch), Mode(mode), receipt)
        if self.model.over(name) or epoch != "right":
            assert isinstance(found, Fenced), "I4"
            self.see()
            return
        self.see(*self.model.acknowledge(name, mode))

    @needs(known)
    @rule(name=one_of(known), status=st.sampled_from(TERMINAL), epoch=EPOCH)
    def finish(self, name, status, epoch):
        outcome = OutcomeRecord(status=Status(status), result=f"at {self.model.now}")
        before = self.records[name]
        found = self.call(self.store.finish, name, self.epoch(name, epoch), outcome, None)
        if self.model.over(name) or epoch != "right":
            assert (found.status, found.outcome) == (before.status, before.outcome), "I1"
            self.see(name)
            assert self.logs[name][-1].type is EventType.LATE
            return
        self.model.end(name, status, "worker")
        assert found.outcome == outcome
        self.see(name)

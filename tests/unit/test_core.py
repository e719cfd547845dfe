"""The core alone: what it does without an engine, and its small values."""

import asyncio
import contextlib
import contextvars
import functools
import itertools
import math

import pytest

import stoppable
from stoppable import InvalidArgument, Mode, Policy, Rung
from stoppable._core import context, participants
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode, Sink
from stoppable._core.stop import Stop


def inside(run, function, *args):
    """Call a function as code of a run."""
    place = contextvars.copy_context()
    place.run(context.current.set, run)
    return place.run(function, *args)


def test_modes_and_rungs_are_ordered_as_they_are_climbed():
    assert sorted(Mode, key=lambda mode: mode.rank) == ["cooperative", "graceful", "immediate", "kill"]
    assert Mode.COOPERATIVE < Mode.GRACEFUL <= Mode.GRACEFUL
    assert Rung.LOST > Rung.KILL >= Rung.KILL


def test_a_policy_knows_its_total():
    assert Policy().total(Mode.GRACEFUL) == 18
    assert Policy().total(Mode.GRACEFUL, grace=0) == 8
    assert Policy().total(Mode.COOPERATIVE) == math.inf
    assert Stop(RunNode("run"), Mode.COOPERATIVE, stoppable.Reason()).kill_at is None


@pytest.mark.parametrize("name", ["grace", "interrupt", "cancel", "kill"])
def test_a_rung_lasts_up_to_a_year(name):
    year = 365 * 24 * 3600
    assert getattr(Policy(**{name: year}), name) == year
    for more in (year + 1, 1e10, 10**20, math.inf):
        with pytest.raises(InvalidArgument, match=f"{name} is .*: use a number of seconds from 0 up to"):
            Policy(**{name: more})


def test_the_places_outside_any_run_are_never_closed():
    with pytest.raises(AssertionError, match="never closed"):
        context.OUTSIDE.raise_stopped()
    assert not context.OUTSIDE.answer_should_stop()


@pytest.mark.parametrize("leaving", list(itertools.permutations(range(3))))
def test_children_are_listed_in_the_order_they_came_whoever_leaves(leaving):
    parent = RunNode("parent")
    children = [RunNode(str(number), parent) for number in range(3)]
    left = list(children)
    for number in leaving:
        assert children[number]._leave_parent()
        assert not children[number]._leave_parent()
        left.remove(children[number])
        assert parent.list_children() == left
    late = RunNode("late", parent)
    assert parent.list_children() == [late]


def test_a_stop_reaches_each_run_of_the_tree_once_and_after_its_parent():
    root = RunNode("root", RunNode("above"))
    RunNode("beside", root.parent)
    one, two = RunNode("one", root), RunNode("two", root)
    leaves = [RunNode("leaf", one), RunNode("leaf", one), RunNode("leaf", two)]
    root.stop("cooperative")
    assert root.first_stop.nodes == [root, one, *leaves[:2], two, leaves[2]]


def test_a_stop_that_reaches_a_run_twice_is_noted_once():
    """A child that a signal handler starts while its tree is being marked is born stopped, and then marked."""
    run = RunNode("run")
    run.stop("cooperative")
    run._note(run.first_stop)
    assert len(run.token.reasons) == 1


@pytest.mark.parametrize("given", [{"reason": ValueError("why")}, {"reason": 5}, {"actor": 5}])
def test_a_reason_or_an_actor_that_is_no_text_is_refused_where_it_is_given(given):
    """Later, nobody could show it: an error that names it would fail to be printed."""
    run = RunNode("run")
    with pytest.raises(InvalidArgument, match="string"):
        run.stop("cooperative", **given)
    assert not run.token.stopped


class _Tool:
    async def __call__(self):
        return stoppable.current_run().in_flight


async def _tool(_name):
    return stoppable.current_run().in_flight


@pytest.mark.parametrize(
    ("tool", "label"),
    [(_Tool(), "tool:_Tool"), (functools.partial(_tool, 1), "tool:_tool"), (functools.partial(_Tool()), "tool:_Tool")],
)
async def test_a_decorated_object_is_in_flight_while_it_is_awaited(tool, label):
    run = RunNode("run")
    run.begin(None)
    context.current.set(run)
    assert await stoppable.boundary("tool")(tool)() == (label,)
    assert run.in_flight == ()


async def test_a_decorated_function_that_raises_leaves_its_boundary():
    @stoppable.boundary("tool")
    def fails():
        raise ValueError("blocking")

    @stoppable.boundary("tool")
    async def fails_later():
        stoppable.current_run().stop("cooperative")
        raise ValueError("async")

    run = RunNode("run")
    run.begin(None)
    context.current.set(run)
    with pytest.raises(ValueError, match="blocking"):
        fails()
    with pytest.raises(ValueError, match="async"):
        await fails_later()
    assert run.members_of(Boundary) == []
    assert [entry.fate for _, entry in run.first_stop.in_flight] == ["finished"]


async def test_a_shield_that_is_over_protects_no_longer(clock):
    async with _stopping("work") as run:
        with stoppable.shielded(5):
            with stoppable.shielded(1):
                clock.advance(2)
                assert not stoppable.should_stop(), "the outer shield still holds"
            clock.advance(4)
            assert stoppable.should_stop()
            with pytest.raises(stoppable.AgentStopped):
                stoppable.check()
            with pytest.raises(stoppable.AgentStopped), stoppable.boundary("tool", "late"):
                pytest.fail("never entered")
    assert run.status == "stopped"


async def test_a_limit_counts_in_a_shield_and_stops_there_too():
    with pytest.raises(stoppable.RunStopped, match="limit of 1 tool"):
        async with stoppable.open_run("work", limits=stoppable.Limits(boundaries={"tool": 1})):
            with stoppable.shielded(5):
                for _ in range(3):
                    with stoppable.boundary("tool"):
                        pass
            stoppable.check()


async def test_a_sink_is_told_what_a_run_does():
    told = []

    class Told(Sink):
        def entered(self, run, boundary):
            told.append(("entered", run.name, boundary.label))

        def left(self, run, boundary):
            told.append(("left", run.name, boundary.label))

        def partial(self, run, value, *, appended):
            told.append(("partial", value, appended))

        def event(self, run, kind, data):
            told.append((kind, data))

    stoppable.emit("nobody listens")
    async with stoppable.open_run("parent") as run:
        stoppable.emit("nobody listens")
        run.sink = Told()
        async with stoppable.open_run("child"):
            with stoppable.boundary("tool", "x"):
                stoppable.set_partial("a")
                stoppable.append_partial("b")
            with stoppable.shielded(1), stoppable.boundary("store"):
                stoppable.emit("saved", rows=3)
    assert told == [
        ("entered", "child", "tool:x"),
        ("partial", "a", False),
        ("partial", "b", True),
        ("left", "child", "tool:x"),
        ("entered", "child", "store"),
        ("saved", {"rows": 3}),
        ("left", "child", "store"),
    ]


def test_of_two_threads_that_make_the_partial_at_once_neither_loses_its_text(monkeypatch):
    run = RunNode("agent")

    @contextlib.contextmanager
    def another_thread_is_faster():
        monkeypatch.undo()
        inside(run, stoppable.append_partial, "first ")
        yield

    monkeypatch.setattr("stoppable._core.run.lock", another_thread_is_faster())
    inside(run, stoppable.append_partial, "second")
    assert run.partial == "first second"


async def test_a_receipt_of_a_child_leaves_out_what_is_not_below_it():
    async with _stopping("parent") as parent:
        children = [RunNode(name, parent) for name in ("one", "two")]
        for child in children:
            child.begin(None)
            inside(child, stoppable.boundary("tool", child.name).__enter__)
        parent.stop("cooperative")
        for child in children:
            child.deliver(raised=True)
            child.main = None
            child.members.clear()
            child.end(None, None)
    assert [node.name for node in children[0].receipt.entries] == ["one", "one"]
    assert children[0].receipt.in_flight == ("tool:one",)


async def test_a_remote_that_does_not_answer_leaves_the_stop_unacknowledged(clock):
    told = []

    class Remote(participants.RemoteParticipant):
        def tell(self, stop):
            told.append(stop)

        def alive(self):
            return True

        @classmethod
        def climb(cls, rung, targets):
            pass

    async with _stopping("told") as run, _admitted(Remote(), run):
        receipt = run.stop("graceful")
        assert receipt.acknowledged_at is None
        run.stop("immediate")
        assert [stop.mode for stop in told] == ["graceful", "immediate"]
        woken = []
        told[0].when_acknowledged(lambda: woken.append("waited"))
        told[0].acknowledge()
        told[0].when_acknowledged(lambda: woken.append("at once"))
        assert woken == ["waited", "at once"]
        assert run.receipt.acknowledged_at is not None


@contextlib.asynccontextmanager
async def _admitted(member, run):
    run.admit(member)
    try:
        yield
    finally:
        run.withdraw(member)


class _stopping:  # noqa: N801
    """A run that is stopped on entry and ends stopped, whatever its block does."""

    def __init__(self, name):
        self._opened = stoppable.open_run(name)

    async def __aenter__(self):
        run = await self._opened.__aenter__()
        if run.name == "work":
            run.stop("cooperative")
        return run

    async def __aexit__(self, kind, error, tb):
        stoppable.should_stop()
        try:
            await self._opened.__aexit__(kind, error, tb)
        except stoppable.RunStopped:
            pass
        return error is None


def test_a_shield_that_is_entered_again_is_refused_because_it_would_protect_nothing():
    shield = stoppable.shielded(5)
    with stoppable.open_run("work"):
        with shield:
            with pytest.raises(stoppable.InvalidArgument, match="already used"), shield:
                raise AssertionError("never entered")
        with pytest.raises(stoppable.InvalidArgument, match="already used"), shield:
            raise AssertionError("never entered")


async def test_a_boundary_in_a_callback_of_the_loop_belongs_to_no_task():
    entered = asyncio.Event()

    def callback():
        with stoppable.boundary("tool"):
            entered.set()

    async with stoppable.open_run("work"):
        with stoppable.shielded(1):
            asyncio.get_running_loop().call_soon(callback)
            await entered.wait()
        entered.clear()
        asyncio.get_running_loop().call_soon(callback)
        await entered.wait()


def test_a_run_that_is_over_cannot_be_given_up():
    run = RunNode("run")
    run.begin(None)
    run.end("value", None)
    outcome = run.outcome
    run.lose()
    assert run.outcome is outcome


async def test_what_is_in_flight_is_told_at_any_moment():
    async with stoppable.open_run("work") as run:
        assert run.in_flight == ()
        async with stoppable.boundary("llm", "ask"):

            async def child():
                with stoppable.boundary("tool"):
                    assert run.in_flight == ("llm:ask", "tool")

            await stoppable.call(child)
            assert run.in_flight == ("llm:ask",)
        assert run.receipt is None


async def test_an_async_boundary_of_another_task_takes_part_and_is_told_of_and_has_a_fate():
    told = []

    class Told(Sink):
        def entered(self, run, boundary):
            told.append(("entered", boundary.label))

        def left(self, run, boundary):
            told.append(("left", boundary.label, boundary.fate))

    async def work(run):
        async with stoppable.boundary("tool", "beside"):
            assert len(run.participants()) == 2
            assert run.stop("cooperative").in_flight == ("tool:beside",)

    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work") as run:
            run.sink = Told()
            await asyncio.create_task(work(run))
            stoppable.check()
    assert told == [("entered", "tool:beside"), ("left", "tool:beside", "finished")]


def test_whoever_comes_while_another_thread_makes_the_members_gets_the_same():
    run = RunNode("busy")
    assert run.make_members() is run.make_members()


class TakenBack(list):
    """What waits for the end of a run, at the worst moment: the last one is taken back while the end is announced."""

    def pop(self, index=-1):
        self.clear()
        return super().pop(index)


def test_a_waiter_that_is_taken_back_while_the_end_is_announced_is_not_called():
    run = RunNode("run")
    run.begin(None)
    called = []
    run._on_end = TakenBack([lambda: called.append("woken")])
    run.end(None, None)
    assert run.status == "completed"
    assert called == []


class Announced(list):
    """What waits for the end of a run, at the worst moment: it ends while a newcomer is published."""

    def __init__(self, run, *, is_woken):
        super().__init__()
        self.run = run
        self.is_woken = is_woken

    def insert(self, index, wake):
        if self.is_woken:
            super().insert(index, wake)
        self.run.end(None, None)
        if not self.is_woken:
            super().insert(index, wake)


@pytest.mark.parametrize("is_woken", [True, False], ids=["before the end", "after it"])
def test_a_waiter_that_comes_with_the_end_is_called_once(is_woken):
    run = RunNode("run")
    run.begin(None)
    called = []
    run._on_end = Announced(run, is_woken=is_woken)
    run.when_ended(lambda: called.append("woken"))
    assert called == ["woken"]
    assert run._on_end == []

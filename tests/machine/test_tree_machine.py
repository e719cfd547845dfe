"""Random lives of a tree of runs, each step compared with the model of the contract: G1–G6, G8, G10–G12."""

import asyncio
import contextvars
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from stoppable._core.boundary import boundary, check, should_stop
from stoppable._core.hooks import Moment
from stoppable._core.participants import lock
from stoppable._core.run import append_partial, set_partial
from stoppable._core.shield import shielded
from stoppable._core.values import Reason, ReasonKind
from stoppable.errors import AgentStopped, RunEnded

from .model import RUNGS, TERMINAL, describe, may_become
from .world import Rude, World, no_hook_interferes

MAX_RUNS, MAX_ACTORS = 9, 9


# What the rules draw from: whatever there is now.


def living(world) -> list[str]:
    return [name for name, actor in world.model.actors.items() if actor["alive"] and name not in world.unbegun]


def working(world) -> list[str]:
    """Actors that execute code now and do not wait for a nested run."""
    return [name for name in living(world) if name not in world.awaited]


def in_block(world) -> list[str]:
    return [name for name in working(world) if world.model.actors[name]["stack"][-1]["kind"] in {"boundary", "shield"}]


def told_to_stop(world) -> list[str]:
    return [name for name in working(world) if world.model.closed(world.model.scope(name))]


def hit_by_force(world) -> list[str]:
    return [name for name in working(world) if len(world.actors[name].log) > world.actors[name].arrived]


def able_to_resume(world) -> list[str]:
    return [name for name, edge in world.awaited.items() if edge.run.outcome is not None]


def not_begun(world) -> list[str]:
    return list(world.unbegun)


def known(world) -> list[str]:
    return list(world.runs)


def one_of(candidates):
    return st.runner().flatmap(lambda world: st.sampled_from(candidates(world)))


def needs(candidates):
    return precondition(lambda world: bool(candidates(world)))


has_room = precondition(lambda world: len(world.runs) < MAX_RUNS and len(world.actors) < MAX_ACTORS)
# So that the ends that empty a tree do not come before there is one.
has_a_crowd = precondition(lambda world: len(living(world)) > 2)


PLACE = st.sampled_from(["nested", "beside", "pending"])
BY = st.sampled_from([None, "ann", "bob"])


class TreeMachine(World):
    # Starting

    @initialize(children=st.lists(PLACE, max_size=3), hooked=st.booleans(), calling=st.booleans())
    def start_tree(self, children, hooked, calling):
        """A root with children, perhaps each in the middle of a call, so that the steps have something to happen to."""
        self.start_root()
        self.begin("a0")
        for where in children:
            self.start_child("a0", where, races=False)
        for actor in working(self) if hooked else ():
            self.register_hook(actor, Moment.STOP, None)
            self.register_hook(actor, Moment.INTERRUPT, ValueError("hook"))
        for actor in working(self) if calling else ():
            self.enter_boundary(actor, "llm")

    @has_room
    @precondition(lambda self: len(self.model.roots()) < 2)
    @rule()
    def start_root(self):
        self.new_actor(contextvars.copy_context(), None, runs=self.new_run(None))

    @has_room
    @needs(working)
    @rule(actor=one_of(working), where=PLACE, races=st.booleans())
    def start_child(self, actor, where, races):
        """Nested in the actor's code or beside it; ``races``: the stop comes between the check and the birth."""
        parent = self.model.scope(actor)["run"]
        if self.raised_inside(actor, check) is not None and (not races or self.model.terminal(parent)):
            return
        name = self.new_run(parent)
        if where == "nested":
            self.begin_run(actor, name)
            return
        self.new_actor(*self.copy_of(actor), runs=name)
        if where == "beside":
            self.begin(list(self.actors)[-1])

    @needs(not_begun)
    @rule(actor=one_of(not_begun))
    def begin(self, actor):
        if not self.begin_run(actor, self.unbegun.pop(actor)):
            self.end_actor(actor)

    @has_room
    @needs(working)
    @rule(actor=one_of(working))
    def start_helper(self, actor):
        """A task of the body's own, as asyncio.gather makes them."""
        self.new_actor(*self.copy_of(actor))

    # Code of a run

    @needs(working)
    @rule(actor=one_of(working), asks=st.booleans())
    def check(self, actor, asks):
        """By check(), whose exception is swallowed, or by should_stop()."""
        if not asks:
            self.raised_inside(actor, check)
            return
        frame = self.model.scope(actor)
        self.model.look(frame["run"])
        answer = self.inside(actor, should_stop)
        assert answer == self.model.closed(frame), "G5"
        if answer:
            self.model.deliver(frame["run"])
            self.model.join(actor)

    @needs(working)
    @rule(actor=one_of(working), kind=st.sampled_from(["llm", "tool"]))
    def enter_boundary(self, actor, kind):
        entered = boundary(kind, f"b{next(self.numbers)}")
        if self.raised_inside(actor, entered.__enter__) is None:
            run = self.model.scope(actor)["run"]
            self.push(actor, entered, kind="boundary", run=run, label=entered.label)
            self.model.enter(entered.label, run)

    @needs(working)
    @rule(actor=one_of(working), seconds=st.sampled_from([4, 30, 1, 0]))
    def enter_shield(self, actor, seconds):
        outer = self.model.scope(actor)
        self.model.look(outer["run"])
        shield = shielded(seconds)
        self.inside(actor, shield.__enter__)
        number = next(self.numbers)
        shields = {**outer["shields"], number: self.model.now + seconds}
        self.push(actor, shield, kind="shield", run=outer["run"], shields=shields, id=number)

    @needs(in_block)
    @rule(actor=one_of(in_block), error=st.sampled_from([None, ValueError("own"), Rude("harder")]))
    def leave(self, actor, error):
        """With an exception that is caught right outside the block, or without."""
        self.leave_block(actor, error)

    @needs(working)
    @rule(actor=one_of(working), text=st.sampled_from(["x", "y"]), replaces=st.booleans())
    def record_partial(self, actor, text, replaces):
        self.inside(actor, set_partial if replaces else append_partial, text)
        self.model.record(self.model.scope(actor)["run"], text, replaces=replaces)

    @needs(working)
    @rule(actor=one_of(working), moment=st.sampled_from(Moment), error=st.sampled_from([None, ValueError(), Rude()]))
    def register_hook(self, actor, moment, error):
        self.add_hook(actor, moment, error, is_locked=lock._is_owned)

    # Ends

    @needs(working)
    @rule(actor=one_of(working), error=st.sampled_from([None, ValueError("failed")]), waits=st.booleans())
    def finish(self, actor, error, waits):
        """Return or raise, from inside whatever blocks it is in.

        The edge waits for the children that a body left behind, unless it is blocking code on a loop's thread.
        """
        if waits and self.model.unfinished_children(self.model.scope(actor)["run"]):
            return
        if self.unwind_to_run(actor, error):
            self.end_run(actor, result=None if error else "value", rest=error)

    @needs(told_to_stop)
    @rule(actor=one_of(told_to_stop))
    def unwind(self, actor):
        """A check raises, and the body lets it through."""
        stopped = self.raised_inside(actor, check)
        if self.unwind_to_run(actor, stopped):
            self.end_run(actor, stop=stopped)

    @needs(hit_by_force)
    @rule(actor=one_of(hit_by_force))
    def force_arrives(self, actor):
        """A cancel of ours ends the innermost run; its edge consumes it."""
        self.actors[actor].arrived = len(self.actors[actor].log)
        if self.unwind_to_run(actor, asyncio.CancelledError()):
            self.end_run(actor)

    @needs(able_to_resume)
    @rule(actor=one_of(able_to_resume))
    def resume(self, actor):
        """The code around a nested run goes on with its value or its error, whichever it swallows."""
        edge = self.awaited.pop(actor)
        frame = self.model.scope(actor)
        outcome = edge.run.outcome
        passing = edge._propagating is not None and edge._propagating.target != edge.run.id
        try:
            value = self.inside(actor, edge.answer)
        except AgentStopped as stopped:
            assert outcome.status in {"stopped", "lost"}
            assert passing or self.model.closed(frame)
            source = edge.run.name if passing else frame["run"]
            if self.model.stopped(source):  # otherwise it says that the run around it has finished
                assert describe(stopped.reason) == self.model.reason(source), "G3"
            self.model.deliver(frame["run"])
        except RunEnded as ended:
            assert ended.outcome is outcome
            assert outcome.status in {"stopped", "lost"}
            assert not self.model.closed(frame)
        except ValueError as error:
            assert outcome.status == "failed"
            assert error is outcome.error
        else:
            assert outcome.status == "completed"
            assert value == outcome.result

    @has_a_crowd
    @rule(actor=one_of(living), how=st.sampled_from(["foreign cancel", "vanish"]))
    def end_early(self, actor, how):
        """By somebody else's cancel, which passes at once through every run of the task; or with its event loop."""
        self.awaited.pop(actor, None)
        if how == "vanish":  # it will never take another step, and nobody is told
            self.model.actors[actor].update(alive=False, vanished=True)
            self.actors[actor].living = False
        cancel = asyncio.CancelledError()
        while self.model.actors[actor]["alive"]:
            if self.unwind_to_run(actor, cancel):
                self.end_run(actor, outsider=cancel)
                self.awaited.pop(actor, None)

    # From outside

    @needs(known)
    @rule(run=one_of(known), mode=st.sampled_from(["graceful", "cooperative"]), by=BY, kind=st.sampled_from(ReasonKind))
    def stop_gently(self, run, mode, by, kind):
        self._stop(run, mode, by, kind)

    @needs(known)
    @rule(run=one_of(known), mode=st.sampled_from(["immediate", "kill"]), by=BY, kind=st.sampled_from(ReasonKind))
    def stop_hard(self, run, mode, by, kind):
        self._stop(run, mode, by, kind)

    def _stop(self, run, mode, by, kind):
        real = self.runs[run]
        before, expected = real.receipt, self.model.answer(run, mode)
        was_target, names = self.model.runs[run]["is_target"], self.model.unfinished()
        self.model.stop(run, mode, (kind.value, "why", by))
        crews = self.model.crews(names)
        with no_hook_interferes():
            receipt = real.stop(mode, Reason.of("why", kind=kind, actor=by))
        assert receipt.answer == expected, "G10"
        if expected in {"accepted", "escalated"}:
            self.settle_blindness(run)
        self.model.climb(names)
        self._force_reached(crews)
        if expected == "already_stopping" and was_target:
            assert replace(receipt, answer=before.answer) == before, "G10: the same receipt"
        if expected in {"accepted", "escalated"}:
            assert set(receipt.in_flight) >= self.model.open_in(run), "G1"

    @rule(seconds=st.sampled_from([0.5, 1, 2, 5, 10]))
    def tick(self, seconds):
        """Time goes on, from one deadline to the next, so that the model sees each rung."""
        end = self.model.now + seconds
        while self.model.now < end:
            names = self.model.unfinished()
            due = [at for name in names for at, _ in self.model.rungs(name) if at > self.model.now]
            crews = self.model.crews(names)
            step = min([end, *due]) - self.model.now
            self.model.now += step
            with no_hook_interferes():
                self.clock.advance(step)
            self.model.climb(names)
            self._force_reached(crews)
            self.every_claim_holds()

    def _force_reached(self, crews: dict[str, tuple[str, list[str]]]) -> None:
        """CANCEL and KILL reach every participant that is there when they are due; a shield holds CANCEL back."""
        for name, (rung_before, crew) in crews.items():
            rung = RUNGS.index(self.model.runs[name]["rung"])
            if self.runs[name].outcome is not None or rung <= max(1, RUNGS.index(rung_before)):
                continue
            lineage = self.model.lineage(name)
            for actor in map(self.actors.__getitem__, crew):
                got = [RUNGS.index(one) for one, target in actor.log if target in lineage]
                if actor.held_back is None or rung > RUNGS.index("cancel"):
                    assert max(got, default=0) >= rung, f"{actor.name} of {name} was not reached: {actor.log}"

    # Claims

    @invariant()
    def every_claim_holds(self):
        self._statuses_hold()
        for name in self.runs:
            self._token_holds(name)
            self._receipt_holds(name)
        for actor in self.actors.values():
            assert len(set(actor.log)) == len(actor.log), f"a rung was climbed twice: {actor.log}"
        for hook in self.model.hooks:
            self._hook_holds(hook)
        assert self.faults == []

    def _statuses_hold(self) -> None:
        changed = {name: run for name, run in self.runs.items() if run.status != self.model.runs[name]["status"]}
        for name, run in changed.items():
            assert run.status in may_become(self.model.runs[name]["status"]), "G2"
            self.model.runs[name]["status"] = str(run.status)
        for name, run in self.runs.items():
            known = self.model.runs[name]
            if name in changed or run.status not in TERMINAL:
                expected = self.model.expected_status(name)
                assert run.status in expected, f"G6, G8: {name} is {run.status}, not {expected}"
            if name in changed and run.status in TERMINAL:
                known["outcome"] = run.outcome
                self._outcome_holds(name)
            assert run.outcome is known["outcome"], "G2"

    def _outcome_holds(self, name: str) -> None:
        outcome, known = self.runs[name].outcome, self.model.runs[name]
        result, error = known["ended"] or (None, None)
        assert outcome.partial == known["partial"], "G11"
        assert outcome.result == result, "G11"
        assert outcome.error is error, "G8: the error is attached"
        assert (outcome.reason and describe(outcome.reason)) == (self.model.reason(name)), "G3"

    def _token_holds(self, name: str) -> None:
        token, known = self.runs[name].token, self.model.runs[name]
        assert token.stopped == self.model.stopped(name), "G3, G4"
        reasons = tuple(describe(reason) for reason in token.reasons)
        assert reasons[: len(known["reasons"])] == known["reasons"], "G3: reasons are only appended"
        assert reasons[:1] == (() if not token.stopped else (self.model.reason(name),)), "G3"
        known["reasons"] = reasons

    def _receipt_holds(self, name: str) -> None:
        receipt, known = self.runs[name].receipt, self.model.runs[name]
        if receipt is None:
            assert not known["stops"]
            return
        listed, after = set(receipt.in_flight), set(receipt.entered_after)
        assert self.model.open_in(name) <= listed | after, "G1: what is open is in the receipt"
        assert listed <= known["seen_in_flight"], "G1: what was never open at a stop is not"
        assert after == known["entered_after"], "G1"
        assert len(listed) == len(receipt.in_flight)
        assert len(after) == len(receipt.entered_after), f"listed twice: {receipt.entered_after}"
        assert receipt.mode == self.model.mode(name), "G6"
        # One that has looked since is called blind until its grace would have been over.
        assert receipt.blind >= any(stop["is_blind"] for stop in known["stops"]), "a run that cannot obey is told"
        assert receipt.blind <= any(stop["was_blind"] for stop in known["stops"]), "one that can obey is not called so"
        assert (receipt.delivered_at is not None) == known["delivered"]
        if receipt.final:
            self._final_receipt_holds(name, receipt)

    def _final_receipt_holds(self, name: str, receipt) -> None:
        known = self.model.runs[name]
        if all(self.model.terminal(member) for member in self.model.family(name)):
            known["final_receipt"] = known["final_receipt"] or receipt
            assert receipt == known["final_receipt"], "a final receipt changed"
        assert receipt.too_late == (receipt.status in {"completed", "failed"})
        fates = {f"{node.kind}:{node.name}": node.fate for node in receipt.entries}
        for label in receipt.in_flight:
            assert (fates[label] == "finished") >= (label in self.model.finished), "G11"
        reached = {member for member in self.model.family(name) if self.model.share_a_stop(member, name)}
        assert {f"run:{member}" for member in reached} <= set(fates)

    def _hook_holds(self, hook) -> None:
        known = self.model.runs[hook["run"]]
        due = {
            "stop": bool(known["stops"]),
            "interrupt": known["rung"] != "signal",
            "end": self.model.terminal(hook["run"]),
        }
        possible = {due[hook["moment"]]}
        if hook["is_after_end"]:  # by a helper: a ladder may have climbed for what is left of the run, or not
            possible |= {False, bool(known["stops"])}
        assert hook["calls"] in possible, f"G12: {hook}"


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=250, stateful_step_count=40, deadline=None, print_blob=True)
# It takes a few seconds. When it fails, hypothesis may shrink for five minutes before it says how.
TestTree = pytest.mark.timeout(600)(TestTree)

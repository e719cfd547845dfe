"""The real runs of the machine, driven as the engine drives them, with actors in place of tasks."""

import contextvars
import faulthandler
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from stoppable._core import participants
from stoppable._core.hooks import Moment, _user_hook, on_end
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.shield import shielded
from stoppable._engine import control
from stoppable._engine.asyncio_engine import AsyncioEngine
from stoppable._engine.edge import _Edge
from stoppable.errors import AgentStopped
from stoppable.testing import FakeClock

from .model import Frame, Model, describe


class Rude(BaseException):
    """What a hook raises that asks a cancelled future, or calls sys.exit()."""


@contextmanager
def no_hook_interferes() -> Iterator[None]:
    try:
        yield
    except Rude as rude:
        raise AssertionError("G10, G12: what a hook raised came out of the library") from rude


class Actor(Participant):
    """Stands for a task; force is noted in its log and has no effect until a rule lets it arrive."""

    __slots__ = ("arrived", "held_back", "joined", "living", "log", "name", "shields", "world")

    def __init__(self, name: str, world: "World") -> None:
        self.name = name
        self.world = world
        self.living = True
        self.joined: list[RunNode] = []
        self.shields: list[shielded] = []
        self.held_back: RunNode | None = None
        self.log: list[tuple[str, str]] = []  # of rung and run
        self.arrived = 0

    @classmethod
    def climb(cls, rung, targets) -> None:
        for actor, run in targets.items():
            actor._reach(rung, run)

    def _reach(self, rung, run) -> None:
        shields_end = max((shield._ends_at() for shield in self.shields), default=0.0)
        if rung == "cancel" and shields_end > self.world.clock.now():
            self.held_back = run
            control.get().call_at(shields_end, self._let_through)
            return
        if rung == "cancel" and self.living and self.world.is_shielded(self.name):
            self.world.faults.append(f"G7: CANCEL reached {self.name} in a shield")
        self.log.append((str(rung), run.name))

    def _let_through(self) -> None:
        run, self.held_back = self.held_back, None
        if run is not None:
            self._reach("cancel", run)

    def alive(self) -> bool:
        return self.living

    def describe(self) -> str:
        return f"actor {self.name}"

    def shield_entered(self, shield: shielded) -> None:
        self.shields.append(shield)

    def shield_left(self, shield: shielded) -> None:
        self.shields.remove(shield)
        self._let_through()


class _CancelledEdge(_Edge):
    """The edge of a run whose task other code can cancel: the actors here are no tasks."""

    __slots__ = ()

    def _was_cancelled_since_it_opened(self) -> bool:
        return True


class World(RuleBasedStateMachine):
    """What is real, beside the model of it. The rules are in test_tree_machine.py."""

    def __init__(self) -> None:
        super().__init__()
        faulthandler.cancel_dump_traceback_later()  # hypothesis shrinks a failure for minutes, and then says how
        logging.getLogger("stoppable").disabled = True  # hooks fail on purpose here
        self.clock = FakeClock()
        self.clock.__enter__()
        self._engine = participants.engine
        self._executing: Actor | None = None
        participants.engine = engine = AsyncioEngine()
        engine.current = lambda: self._executing
        engine.join = engine.attend = self._join
        self.model = Model()
        self.runs: dict[str, RunNode] = {}
        self.actors: dict[str, Actor] = {}
        self.contexts: dict[str, contextvars.Context] = {}
        self.things: dict[int, Any] = {}  # the boundary, shield or edge of each frame
        self.awaited: dict[str, _Edge] = {}  # the edge of the nested run that has ended on an actor
        self.unbegun: dict[str, str] = {}  # the actor that will execute a run, and the run
        self.faults: list[str] = []  # what a hook saw; what it raises is logged and forgotten
        self.numbers = iter(range(10**9))

    def teardown(self) -> None:
        participants.engine = self._engine
        self.clock.__exit__(None, None, None)
        logging.getLogger("stoppable").disabled = False

    def _join(self, run: RunNode) -> Actor | None:
        # As the engine does it for the task that enters a boundary or a check.
        actor = self._executing
        if actor is not None and run.main is not actor and actor not in (run.members or ()):
            actor.joined.append(run)
            run.admit(actor)
        return actor

    def inside(self, actor: str, function, *args) -> Any:
        """Call something as the code that an actor executes."""
        self._executing = self.actors[actor]
        try:
            with no_hook_interferes():
                return self.contexts[actor].run(function, *args)
        finally:
            self._executing = None

    def raised_inside(self, actor: str, function) -> AgentStopped | None:
        """Call what must raise exactly while the actor's scope is closed (G5), with the first reason (G3)."""
        frame = self.model.scope(actor)
        closed = self.model.closed(frame)
        self.model.join(actor)
        self.model.look(frame["run"])
        try:
            self.inside(actor, function)
        except AgentStopped as stopped:
            assert closed, f"G5: raised in {frame}, which is not stopped"
            self.model.deliver(frame["run"])
            if self.model.stopped(frame["run"]):
                assert describe(stopped.reason) == self.model.reason(frame["run"]), "G3"
            return stopped
        assert not closed, f"G1, G5: did not raise in {frame}, which is stopped"
        return None

    def new_run(self, parent: str | None) -> str:
        name = f"r{len(self.runs)}"
        self.runs[name] = RunNode(name, None if parent is None else self.runs[parent])
        self.model.add_run(name, parent)
        return name

    def new_actor(self, copied: contextvars.Context, base: Frame | None, *, runs: str | None = None) -> None:
        """Add an actor, made for a run that it will begin, or a helper of the code it was copied from."""
        name = f"a{len(self.actors)}"
        self.actors[name] = Actor(name, self)
        self.contexts[name] = copied
        self.model.add_actor(name, base, runs)
        if runs is not None:
            self.unbegun[name] = runs

    def is_shielded(self, actor: str) -> bool:
        """Whether CANCEL must wait for the actor, at a moment that a tick passes through."""
        end_of_tick, self.model.now = self.model.now, self.clock.now()
        frame = self.model.scope(actor)
        is_shielded = frame is not None and self.model.is_shielded(frame)
        self.model.now = end_of_tick
        return is_shielded

    def copy_of(self, actor: str) -> tuple[contextvars.Context, Frame]:
        scope = self.model.scope(actor)
        return self.contexts[actor].run(contextvars.copy_context), {**scope, "kind": "scope"}

    def push(self, actor: str, thing: Any, **frame: Any) -> None:
        frame.setdefault("id", next(self.numbers))
        self.things[frame["id"]] = thing
        self.model.actors[actor]["stack"].append(frame)

    def begin_run(self, actor: str, name: str) -> bool:
        outer = self.model.scope(actor)
        is_shielded = outer is not None and self.model.is_shielded(outer)
        was_over = self.model.terminal(name)
        edge = _CancelledEdge(self.runs[name])
        begun = self.inside(actor, edge._open, self.actors[actor])
        assert begun == (not was_over and (is_shielded or not self.model.stopped(name))), "stopped before it began"
        if begun:
            self.model.runs[name]["begun"] = True
            self.push(actor, edge, kind="run", run=name, shields=outer["shields"] if is_shielded else {})
        else:
            assert was_over or self.runs[name].status == "stopped"
        return begun

    def leave_block(self, actor: str, error: BaseException | None) -> None:
        """Leave the innermost boundary or shield; leaving raises nothing of its own (G11)."""
        frame = self.model.actors[actor]["stack"].pop()
        thing = self.things.pop(frame["id"])
        self.model.left_shields.add(frame["id"])
        try:
            assert not self.inside(actor, thing.__exit__, type(error) if error else None, error, None)
            if frame["kind"] == "boundary":
                self.model.look(frame["run"])
        except AgentStopped as stopped:
            raise AssertionError("G11: raised on the way out") from stopped
        if frame["kind"] == "boundary":
            self.model.leave(frame["label"], finished=error is None)

    def unwind_to_run(self, actor: str, error: BaseException | None) -> bool:
        """Leave everything down to the innermost run; a helper has none, and its task ends."""
        stack = self.model.actors[actor]["stack"]
        while stack[-1]["kind"] in {"boundary", "shield"}:
            self.leave_block(actor, error)
        if stack[-1]["kind"] == "run":
            return True
        self.end_actor(actor)
        return False

    def end_run(self, actor: str, *, result=None, stop=None, outsider=None, rest=None) -> None:
        """Do what the run edge does with a body's way out."""
        frame = self.model.actors[actor]["stack"].pop()
        name = frame["run"]
        edge = self.things.pop(frame["id"])
        is_stopped = outsider is not None and self.model.answer(name, "graceful") in {"accepted", "escalated"}
        if outsider is not None:
            self.model.stop(name, "graceful", ("external", "CancelledError from outside", None))
        if stop is not None or outsider is not None:
            self.model.deliver(name)
        self.model.end(name, result, rest)
        self.inside(actor, edge._leave)
        self.inside(actor, edge._close, result, stop, outsider, rest)
        if is_stopped:
            self.settle_blindness(name)
        if self.model.actors[actor]["made_for"] == name:
            self.end_actor(actor)
        else:
            self.awaited[actor] = edge
        self.every_claim_holds()  # a foreign cancel ends several runs in one step

    def settle_blindness(self, name: str) -> None:
        """Tell the model what the last stop of a run has found."""
        stop = self.runs[name].stops()[-1]
        self.model.settle_blindness(name, stop.is_blind, {run.name for run in stop.nodes})

    def every_claim_holds(self) -> None:
        raise NotImplementedError

    def end_actor(self, actor: str) -> None:
        """Its task is done, and its runs are told."""
        self.model.actors[actor]["alive"] = False
        self.actors[actor].living = False
        self.awaited.pop(actor, None)
        for run in self.actors[actor].joined:
            run.withdraw(self.actors[actor])
            run.settle()

    def add_hook(self, actor: str, moment: Moment, error: BaseException | None, is_locked) -> None:
        run = self.model.scope(actor)["run"]
        hook = {"run": run, "moment": moment.value, "calls": 0, "is_after_end": self.model.terminal(run)}
        self.model.hooks.append(hook)

        def called(*_outcome) -> None:
            hook["calls"] += 1
            if is_locked():
                self.faults.append("G12: called under the lock")
            if moment is Moment.END:
                return
            unmarked = [name for name in self.model.family(run) if not self.runs[name].token.stopped]
            if not all(self.model.terminal(name) for name in unmarked):
                self.faults.append(f"G12: called before {unmarked} were marked")
            if error is not None:
                raise error

        if moment is Moment.END:
            self.inside(actor, on_end, called)
        else:
            self.model.look(run)
            self.inside(actor, _user_hook, moment, called)

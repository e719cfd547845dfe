"""Blocking generator agents inside a run: the consumer's thread executes them, one item at a time."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Mapping
from typing import Any, Self

from stoppable._core import context
from stoppable._core.boundary import check
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.state import Rung, Status
from stoppable._engine import tasks
from stoppable._engine.edge import BlockingEdge
from stoppable._engine.source_lines import place


class Steps(Participant):
    """A generator that is a child run, for a ``yield from``.

    Its code runs in a separate context, like an async generator agent in its task, so that the run does not leak into
    the consumer at a ``yield``. Between two items no code executes it: a stop takes effect when the next item is asked
    for, and closes it. It is a separate kind of participant, so that force against it never hits its consumer (G13).
    """

    __slots__ = ("_context", "_edge", "_generator", "_is_over", "loop", "task", "thread")

    def __init__(self, run: RunNode, generator: Generator[Any, Any, Any]) -> None:
        self._leave_task()
        self._generator = generator
        self._context = contextvars.copy_context()
        self._edge = BlockingEdge(run)
        self._is_over = not self._context.run(self._edge.open, self)

    # As a generator

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._step(self._resume, None)

    def send(self, value: Any) -> Any:
        """Resume it with a value for its ``yield``."""
        return self._step(self._resume, value)

    def throw(self, *error: Any) -> Any:
        """Resume it with an error."""
        return self._step(self._generator.throw, *error)

    def close(self) -> None:
        """End it because its consumer left: a stop of kind ``disconnect``."""
        if self._is_over:
            return
        with contextlib.suppress(GeneratorExit):
            self._context.run(self._take, self._shut)
        outcome = self._edge.run.outcome
        if outcome is not None and outcome.status is Status.FAILED:
            self._edge.answer()  # an error of its clean-up propagates to the consumer, as with any generator

    def _step(self, resume: Callable[..., Any], *args: Any) -> Any:
        if not self._is_over:
            item = self._context.run(self._take, resume, *args)
            if not self._is_over:
                return item
        raise StopIteration(self._edge.answer())

    # In its own context

    def _take(self, resume: Callable[..., Any], *args: Any) -> Any:
        executing = tasks.current()
        if executing is not None:
            self.task, self.loop, self.thread = executing.task, executing.loop, executing.thread
        try:
            return resume(*args)
        except StopIteration as end:
            return self._end(end.value, None)
        except BaseException as error:
            return self._end(None, error)
        finally:
            self._leave_task()

    def _leave_task(self) -> None:
        self.task, self.loop, self.thread = None, None, Participant.thread

    def _resume(self, value: Any) -> Any:
        if context.current.get().closed:
            with contextlib.closing(self._generator):
                check()
        return self._generator.send(value)

    def _shut(self) -> None:
        self._generator.close()
        raise GeneratorExit

    def _end(self, result: Any, error: BaseException | None) -> None:
        self._is_over = True
        self._edge.close(result, error)

    # As a participant

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Do nothing: it is executed by a task or a thread that belongs to another run as well."""

    def alive(self) -> bool:
        """Return whether it can be resumed."""
        return not self._is_over

    def describe(self) -> str:
        """Name it and the line where it is."""
        where = place(tasks.suspended_in(self._generator))
        return f"{where} (generator {self._edge.run.name})" if where else f"generator {self._edge.run.name}"

    def left_behind(self) -> None:
        """End with the surrounding run: a variable or a traceback may keep it alive, but it is no longer read."""
        with contextlib.suppress(Exception):  # its own errors are in its outcome; or another thread is in it just now
            self.close()

"""What one call of ``agent.run`` has done, and how it gets into the agent's memory after a stop."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any

from smolagents import ActionStep, ChatMessageStreamDelta, CodeAgent, PlanningStep, Timing, ToolCall
from smolagents.utils import truncate_content

import stoppable
from stoppable import Run
from stoppable.adapters.smolagents import names
from stoppable.adapters.turn import Turn

Finish = Callable[[Any], Any]
"""Takes the result of a call, and returns it."""


class AgentTurn(Turn):
    """One call of ``agent.run`` inside a run.

    An agent saves a step when it is complete. What a stop has cut is completed here: the memory gets the text so far
    and an answer to each tool call.
    """

    def __init__(self, agent: Any, run: Run, *, is_below: bool) -> None:
        super().__init__()
        self.agent = agent
        self.run: Run = run
        self._is_below = is_below
        self._matching = threading.Lock()
        self._calls: dict[str, ToolCall] = {}
        """Those that the model has asked for in this step."""
        self._calls_of_code: dict[Hashable, str] = {}
        """The tools that the code of this step has called."""
        self._step: ActionStep | None = None
        """The last step that the agent has saved, if nothing has happened since then."""
        self._plan: PlanningStep | None = None
        """The same of a plan, which the agent saves only when its reader asks for more."""
        self._is_saved = True
        self._has_spoken = self._is_speaking = False
        self._is_complete = False

    # What happens in it

    def note(self, item: Any) -> None:
        """Note what an agent yields."""
        if self._is_saved:  # something else begins
            self.clear()
            self._calls, self._calls_of_code = {}, {}
            self._step, self._plan = None, None
            self._is_saved = self._is_speaking = False
        match item:
            case ChatMessageStreamDelta(content=str(text)) if text:
                self._hear(text)
            case ToolCall():
                self._calls[item.id] = item
                self.request(item.id)
            case ActionStep():
                self._step, self._is_saved = item, True
            case PlanningStep():
                self._plan, self._is_saved = item, True

    def _hear(self, text: str) -> None:
        self.say(text)
        if not self._is_below:  # what a member of the team says is no answer
            is_first, self._is_speaking = not self._is_speaking, True
            stoppable.append_partial("\n\n" + text if is_first and self._has_spoken else text)
            self._has_spoken = True

    @contextlib.contextmanager
    def performing(self, name: str, arguments: Any) -> Iterator[Finish]:
        """Let the block be the execution of a tool call, or of code; smolagents does not say of which call.

        Two calls of the same tool with the same arguments may change places, which makes no difference to anybody.
        """
        with self._matching:
            call_id = next((call_id for call_id in self._calls if self._is_of(call_id, name, arguments)), None)
            if call_id is not None:
                self.begin(call_id)
        with self._finishing(call_id) as finish:
            yield finish

    def _is_of(self, call_id: str, name: str, arguments: Any) -> bool:
        call = self._calls[call_id]
        return call.name == name and (call.arguments or {}) == arguments and not self.has_begun(call_id)

    @contextlib.contextmanager
    def performing_in_code(self, name: str) -> Iterator[Finish]:
        """Let the block be a call of a tool that the code of the model makes."""
        call_id = object()
        self._calls_of_code[call_id] = name
        self.begin(call_id)
        with self._finishing(call_id) as finish:
            yield finish

    @contextlib.contextmanager
    def _finishing(self, call_id: Hashable) -> Iterator[Finish]:
        def finish(result: Any) -> Any:
            if call_id is not None:
                self.finish(call_id, result)
            return result

        try:
            yield finish
        except Exception as error:
            finish(f"Error: {error}")
            raise

    # The end

    def leave(self, items: Generator[Any, Any, Any]) -> None:
        """Close the generator of an agent, and complete the memory if the run was stopped.

        The generator answers its closing with the step that it has begun, and has put it into the memory by then.
        """
        try:
            with contextlib.suppress(GeneratorExit, StopIteration):
                self.note(items.throw(GeneratorExit()))
                items.close()
        finally:
            self.complete()

    def complete(self) -> None:
        """Complete the memory if the run was stopped, once."""
        with self._matching:
            if self._is_complete or not self.run.token.stopped:
                return
            self._is_complete = True
        steps, step = self.agent.memory.steps, self._step
        if self._plan is not None:
            if all(each is not self._plan for each in steps):
                steps.append(self._plan)
            return
        if step is None:
            now = time.time()  # noqa: TID251 - as smolagents does
            step = ActionStep(step_number=self.agent.step_number, timing=Timing(start_time=now, end_time=now))
            steps.append(step)
        if step.model_output is None and self.text:
            step.model_output = self.text
        if step.error is None and step.observations is None and self._calls:
            step.tool_calls = list(self._calls.values())
            step.observations = self._observations()
        if not any((step.model_output, step.tool_calls, step.observations, step.error)):
            steps[:] = [each for each in steps if each is not step]  # it did nothing

    def _observations(self) -> str:
        if not isinstance(self.agent, CodeAgent):
            return "\n".join(f"Call id: {answer.call_id}\n{answer.text}" for answer in self.answers())
        lines = [answer.text for answer in self.answers()]
        if logs := names.logs_of(self.agent.python_executor) if self._has_run_code() else "":
            lines.insert(0, f"Execution logs:\n{logs}")
        if self._calls_of_code:
            lines.append("The calls of tools that it made:")
        lines += [f"{name}: {truncate_content(self.answer(key).text)}" for key, name in self._calls_of_code.items()]
        return "\n".join(lines)

    def _has_run_code(self) -> bool:
        return any(self.has_begun(call_id) for call_id in self._calls)


current: contextvars.ContextVar[AgentTurn | None] = contextvars.ContextVar("stoppable-smolagents", default=None)
"""The turn of the agent that executes the calling code."""


@contextlib.contextmanager
def inside(turn: AgentTurn | None) -> Iterator[None]:
    """Make a turn the current one in the block."""
    token = current.set(turn)
    try:
        yield
    finally:
        current.reset(token)

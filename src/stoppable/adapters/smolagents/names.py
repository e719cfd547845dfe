"""The names of smolagents that this adapter replaces or that are undocumented.

Everything private is here, so that one function can say what a version lacks (``missing``).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from stoppable.adapters import _upstream

_FUNCTIONS = {
    "smolagents.agents:MultiStepAgent.run": ("self", "task", "stream", "reset"),
    "smolagents.agents:MultiStepAgent._run_stream": ("self", "task", "max_steps"),
    "smolagents.agents:MultiStepAgent.__call__": ("self", "task"),
    "smolagents.agents:ToolCallingAgent.execute_tool_call": ("self", "tool_name", "arguments"),
    "smolagents.local_python_executor:LocalPythonExecutor.__call__": ("self", "code_action"),
    "smolagents.models:Model.generate": ("self", "messages"),
    "smolagents.models:ApiModel": ("model_id",),
    "smolagents.tools:Tool.__call__": ("self", "args"),
    "smolagents.default_tools:FinalAnswerTool": (),
    "smolagents.memory:ActionStep": ("step_number", "timing"),
}
"""What is wrapped or called, with the first parameters that the adapter relies on."""

_TEXTS = {
    "smolagents.agents": ("yield action_step", "copy_context()", '"_print_outputs" in self.python_executor.state'),
    "smolagents.local_python_executor": ("with ThreadPoolExecutor(", "self.state = "),
    "smolagents.utils": ("time.sleep(delay)", "time.sleep(self._interval - elapsed)"),
}
"""What nothing but the source of a module shows."""


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed version does not have."""
    return _upstream.missing(_FUNCTIONS, _TEXTS)


def logs_of(executor: Any) -> str:
    """Return what the code that an executor runs in this process has printed; empty for code that runs elsewhere."""
    return str(getattr(executor, "state", {}).get("_print_outputs", ""))


def classes_with(value: object, name: str) -> Iterator[type]:
    """Yield the classes of an object that define a method."""
    for kind in type(value).__mro__:
        if inspect.isfunction(vars(kind).get(name)):
            yield kind

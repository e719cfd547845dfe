"""The names of CrewAI that this adapter replaces or that are undocumented.

Everything private is here, so that one function can say what a version lacks (``missing``).
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from crewai.events.event_listener import event_listener

from stoppable.adapters import _upstream
from stoppable.adapters._upstream import find, wrap

_FUNCTIONS = {
    "crewai.agent.core:AgentExecutor.invoke": ("self", "inputs"),
    "crewai.agent.core:AgentExecutor.invoke_async": ("self", "inputs"),
    "crewai.agent.core:AgentExecutor._execute_single_native_tool_call": ("self", "tool_call"),
    "crewai.agent.core:AgentExecutor._append_history": ("self", "inputs"),
    "crewai.events.event_bus:CrewAIEventsBus.emit": ("self", "source", "event"),
    "crewai.events.utils.console_formatter:ConsoleFormatter.handle_llm_stream_completed": ("self",),
    "crewai.events.event_bus:CrewAIEventsBus._ensure_executor_initialized": ("self",),
    "crewai.flow.runtime:Flow.kickoff": ("self", "inputs"),
    "crewai.flow.runtime:Flow._execute_method": ("self", "method_name", "method"),
    "crewai.memory.storage.kickoff_task_outputs_storage:KickoffTaskOutputsSQLiteStorage.__init__": ("self", "db_path"),
    "crewai.memory.storage.kickoff_task_outputs_storage:KickoffTaskOutputsSQLiteStorage.add": ("self", "task"),
    "crewai.memory.storage.kickoff_task_outputs_storage:KickoffTaskOutputsSQLiteStorage.delete_all": ("self",),
    "crewai.memory.storage.kickoff_task_outputs_storage:KickoffTaskOutputsSQLiteStorage.update": ("self", "task_index"),
    "crewai.llms.base_llm:BaseLLM._emit_stream_chunk_event": ("self", "chunk"),
    "crewai.llms.base_llm:BaseLLM.call": ("self", "messages"),
    "crewai.llms.base_llm:BaseLLM.acall": ("self", "messages"),
    "crewai.task:Task._execute_task_async": ("self", "agent", "context", "tools", "future"),
    "crewai.tools.base_tool:BaseTool.run": ("self", "args"),
    "crewai.tools.base_tool:BaseTool.arun": ("self", "args"),
    "crewai.tools.base_tool:Tool.run": ("self", "args"),
    "crewai.tools.base_tool:Tool.arun": ("self", "args"),
    "crewai.tools.structured_tool:CrewStructuredTool.invoke": ("self", "input"),
    "crewai.tools.structured_tool:CrewStructuredTool.ainvoke": ("self", "input"),
    "crewai.types.streaming:StreamingOutputBase.__init__": ("self", "sync_iterator", "async_iterator"),
    "crewai.types.streaming:StreamSessionBase.__init__": ("self", "sync_iterator", "async_iterator"),
    "crewai.utilities.agent_utils:extract_tool_call_info": ("tool_call",),
    "crewai.utilities.agent_utils:get_llm_response": ("llm", "messages"),
    "crewai.utilities.file_store:_run_sync": ("coro",),
    "crewai.utilities.rpm_controller:RPMController._reset_request_count": ("self",),
    "crewai.utilities.streaming:create_chunk_generator": ("state", "run_func", "output_holder"),
    "crewai.utilities.streaming:create_frame_generator": ("state", "run_func", "output_holder"),
    "crewai.utilities.tool_utils:execute_tool_and_check_finality": ("agent_action",),
    "crewai_core.user_data:_user_data_file": (),
}
"""What is wrapped or called, with the first parameters that the adapter relies on."""

_TEXTS = {
    "crewai.agent.core:Agent.kickoff": ("self._last_messages",),
    "crewai.agent.core:AgentExecutor.invoke": (
        "execute_tool_and_check_finality(",
        "extract_tool_call_info(",
        "get_llm_response(",
        "self.state.current_answer = ",
        "self.state.messages",
        "self.state.pending_tool_calls = ",
    ),
    "crewai.utilities.rpm_controller:RPMController.check_or_wait": ("time.sleep(60)",),
}
"""What nothing but the source shows, by a function in the same file."""


def missing() -> list[str]:
    """Return the names that this adapter needs and the installed version does not have."""
    return _upstream.missing(_FUNCTIONS) + [
        f"{path.partition(':')[0]}:{text.strip(' =(')}"
        for path, texts in _TEXTS.items()
        for text in texts
        if text not in _source(path)
    ]


def _source(path: str) -> str:
    """Return the text of the file that a function is in; CrewAI changes ``__file__`` of some of its modules."""
    found = find(path)
    function = inspect.unwrap(found) if callable(found) else None
    try:
        return Path(function.__code__.co_filename).read_text() if inspect.isfunction(function) else ""
    except OSError:
        return ""


EXECUTOR: Any = find("crewai.agent.core:AgentExecutor")
"""What executes one task of an agent, or one kickoff of it: a flow, whose methods ask the model and call tools."""
FLOW: Any = find("crewai.flow.runtime:Flow")
STORAGE: Any = find("crewai.memory.storage.kickoff_task_outputs_storage:KickoffTaskOutputsSQLiteStorage")
"""The record of the last kickoff, in a file: what its tasks have returned."""
STORAGE_METHODS = ("__init__", "add", "delete_all", "update")


def executor_module() -> Any:
    """Return the module in which the executor finds the functions that it calls."""
    return sys.modules[EXECUTOR.__module__]


def set_last_messages(agent: Any, messages: list[dict[str, Any]]) -> None:
    """Set what ``agent.last_messages`` returns."""
    agent._last_messages = messages


def end_display() -> None:
    """End the text of an answer that CrewAI shows as it comes, with a thread; only the end of the answer would."""
    with contextlib.suppress(AttributeError):  # another thread ends it at the same time
        event_listener.formatter.handle_llm_stream_completed()


def open_calls(executor: Any) -> list[tuple[str, str, Any]]:
    """Return the ids, names and arguments of the calls that the model has just asked for."""
    extract = executor_module().extract_tool_call_info
    return list(filter(None, map(extract, executor.state.pending_tool_calls)))


def is_of_crewai(model: object) -> bool:
    """Return whether a model is a class of CrewAI, which sends its calls over HTTP."""
    return type(model).__module__.partition(".")[0] == "crewai"


def classes_with(value: object, name: str) -> Iterator[type]:
    """Yield the classes of an object that define a method, but not those of CrewAI."""
    for kind in type(value).__mro__:
        if kind.__module__.partition(".")[0] != "crewai" and inspect.isfunction(vars(kind).get(name)):
            yield kind


def replace_everywhere(module: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function of a module of CrewAI, and where other modules of CrewAI have imported it."""
    real = vars(module)[name]
    wrap(module, name, wrapper)
    for path, other in list(sys.modules.items()):
        if path.startswith("crewai.") and vars(other).get(name) is real:
            setattr(other, name, vars(module)[name])

"""The end of a stopped turn in its thread, so that the next turn works with every provider.

What to write is decided by functions that do no I/O; the sync and the async way to write it are thin shells over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langgraph.channels import LastValue
from langgraph.graph import END, START
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages

from stoppable.adapters.langgraph.names import thread_config
from stoppable.adapters.langgraph.turns import Thread
from stoppable.adapters.turn import NOT_KNOWN


def repair(graph: Any, config: Any) -> bool:
    """Repair a thread whose tool calls have no answer, and return whether anything was repaired.

    For threads that were broken by a cancelled task or a crash. It does not touch a pending ``interrupt()``, and a
    second call does nothing. Persistent subgraphs are repaired too.
    """
    repairs = [repair_state(graph, where, None) for where in [thread_config(config), *_below(graph, config)]]
    return any(repairs)


async def arepair(graph: Any, config: Any) -> bool:
    """Do what ``repair`` does, with an async checkpointer."""
    repairs = [await arepair_state(graph, where, None) for where in [thread_config(config), *_below(graph, config)]]
    return any(repairs)


def _below(graph: Any, config: Any) -> list[dict[str, Any]]:
    """Return what addresses the persistent subgraphs of a thread."""
    plain = thread_config(config)["configurable"]
    return [
        {"configurable": {**plain, "checkpoint_ns": name}}
        for name, subgraph in graph.get_subgraphs(recurse=True)
        if subgraph.checkpointer is True
    ]


async def awithdraw(graph: Any, config: Any) -> bool:
    """Take back the questions (``interrupt()``) that wait in a thread, and return whether there were any.

    Nobody can answer them any more, and the next input is an ordinary one. The tool calls that asked get an answer.
    """
    withdrawals = [await _awithdraw(graph, where) for where in [thread_config(config), *_below(graph, config)]]
    return any(withdrawals)


async def _awithdraw(graph: Any, config: Any) -> bool:
    state = await graph.aget_state(config)
    if not _is_interrupted(state):
        return False
    node, updates = _node(state), _additions(graph, state, None)
    if not updates or any(task.result is not None for task in state.tasks):
        await graph.aupdate_state(_with_cut(config, node), None, as_node=END)  # keeps the results beside it
    if updates:
        await _awrite(graph, config, updates, node)
    return True


# After a stop


def seal(thread: Thread) -> None:
    """Write the end of a stopped turn into its thread."""
    repair_state(thread.graph, thread.config, thread)


async def aseal(thread: Thread) -> None:
    """Write the end of a stopped turn into its thread."""
    await arepair_state(thread.graph, thread.config, thread)


def roll_back(thread: Thread) -> None:
    """Let a thread, and those of its persistent subgraphs, be as they were when the turn began."""
    for one in [thread, *thread.all_below()]:
        if one.began_at is not None and not one.had_interrupts:
            one.graph.update_state(_at_beginning(one), None, as_node="__copy__")
        elif one is thread and one.began_at is None and (saver := _saver(one)) is not None:
            saver.delete_thread(_id(one))
            return
        else:  # nothing to go back to: an interrupt that was answered, a subgraph that was new
            seal(one)


async def aroll_back(thread: Thread) -> None:
    """Let a thread, and those of its persistent subgraphs, be as they were when the turn began."""
    for one in [thread, *thread.all_below()]:
        if one.began_at is not None and not one.had_interrupts:
            await one.graph.aupdate_state(_at_beginning(one), None, as_node="__copy__")
        elif one is thread and one.began_at is None and (saver := _saver(one)) is not None:
            await saver.adelete_thread(_id(one))
            return
        else:
            await aseal(one)


def _at_beginning(thread: Thread) -> dict[str, Any]:
    assert thread.config is not None, "it is kept"
    return {"configurable": {**thread.config["configurable"], "checkpoint_id": thread.began_at}}


def _saver(thread: Thread) -> Any:
    """Return the checkpointer of a root graph, which alone may delete a thread."""
    return None if isinstance(thread.graph.checkpointer, bool) else thread.graph.checkpointer


def _id(thread: Thread) -> str:
    assert thread.config is not None, "it is kept"
    return str(thread.config["configurable"]["thread_id"])


# Reading and writing


def repair_state(graph: Any, config: Any, thread: Thread | None) -> bool:
    """Write what is missing in a state; the results of nodes that finished beside the stopped one come first.

    Those are two writes, and the process or the store may fail between them. The first one names the node that was cut,
    which the state after it no longer tells, so that the next turn can do the second.
    """
    state = graph.get_state(config)
    node, has_results = _node(state), _has_results(state)
    if has_results:
        graph.update_state(_with_cut(config, node), None, as_node=END)
        state = graph.get_state(config)
    updates = _updates(graph, state, thread)
    if updates:
        _write(graph, config, updates, node)
    return bool(has_results or updates)


async def arepair_state(graph: Any, config: Any, thread: Thread | None) -> bool:
    """Do the same, with an async checkpointer."""
    state = await graph.aget_state(config)
    node, has_results = _node(state), _has_results(state)
    if has_results:
        await graph.aupdate_state(_with_cut(config, node), None, as_node=END)
        state = await graph.aget_state(config)
    updates = _updates(graph, state, thread)
    if updates:
        await _awrite(graph, config, updates, node)
    return bool(has_results or updates)


def _write(graph: Any, config: Any, updates: dict[str, Any], node: str | None) -> None:
    errors: list[Exception] = []
    for author in _authors(node):
        try:
            graph.update_state(config, updates, as_node=author)
        except Exception as error:
            errors.append(error)
        else:
            return
    raise errors[0]


async def _awrite(graph: Any, config: Any, updates: dict[str, Any], node: str | None) -> None:
    errors: list[Exception] = []
    for author in _authors(node):
        try:
            await graph.aupdate_state(config, updates, as_node=author)
        except Exception as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _authors(node: str | None) -> list[str | None]:
    """Return the nodes that an update may be attributed to, best first; None is the last one that wrote.

    LangGraph then routes as after that node, before it writes. A router may fail, because it never sees such a state
    otherwise: the node that was cut has not returned what it looks for.
    """
    return list(dict.fromkeys([node, None, START]))


_CUT = "stoppable_cut"  # in the metadata of a checkpoint


def _with_cut(config: Any, node: str | None) -> dict[str, Any]:
    """Return a configuration whose next write names the node that was cut."""
    return {**config, "metadata": {_CUT: node}} if node is not None else config


def _node(state: Any) -> str | None:
    """Return the node that was cut; the update is attributed to it, so that the graph can continue there."""
    if (cut := (state.metadata or {}).get(_CUT)) is not None:
        return str(cut)
    tasks = sorted(state.tasks, key=lambda task: task.result is not None)
    return next((task.name for task in tasks if not task.name.startswith("__")), None)


def _has_results(state: Any) -> bool:
    """Return whether nodes that finished beside the stopped one have messages, which the next input would drop."""
    results = [task.result for task in state.tasks if isinstance(task.result, dict)]
    return not _is_interrupted(state) and any(
        isinstance(one, BaseMessage) for result in results for value in result.values() for one in _as_list(value)
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_interrupted(state: Any) -> bool:
    return any(task.interrupts for task in state.tasks)


def _updates(graph: Any, state: Any, thread: Thread | None) -> dict[str, Any]:
    """Return what to write, by the key of the messages; nothing while an interrupt waits for its answer."""
    return {} if _is_interrupted(state) else _additions(graph, state, thread)


def _additions(graph: Any, state: Any, thread: Thread | None) -> dict[str, Any]:
    if not isinstance(state.values, dict):
        return {}
    updates = {}
    for key, value in state.values.items():
        if isinstance(value, list) and any(isinstance(one, BaseMessage) for one in value):
            repaired_messages = [*_with_answers(value, thread), *_texts(value, thread)]
            if len(repaired_messages) > len(value):
                updates[key] = _as_update(graph.channels.get(key), value, repaired_messages)
    return updates


def _with_answers(messages: Sequence[BaseMessage], thread: Thread | None) -> list[BaseMessage]:
    """Return the messages with an answer to each tool call, right after the call, where providers expect it."""
    answered_ids = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    complete: list[BaseMessage] = []
    missing: list[BaseMessage] = []
    for message in messages:
        if not isinstance(message, ToolMessage):
            complete += missing
            missing = []
        complete.append(message)
        if isinstance(message, AIMessage):
            missing = [_answer(call, thread) for call in message.tool_calls if call["id"] not in answered_ids]
    return complete + missing


def _answer(call: Any, thread: Thread | None) -> ToolMessage:
    answer = None if thread is None else thread.unsaved.answer(call["id"])
    if answer is not None and isinstance(answer.result, ToolMessage):
        return answer.result
    text = NOT_KNOWN if answer is None else answer.text
    message_id = f"stopped-{call['id']}"  # a stable id: writing it twice adds one message
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error", id=message_id)


def _texts(messages: Sequence[BaseMessage], thread: Thread | None) -> list[BaseMessage]:
    known_ids = {getattr(message, "id", None) for message in messages}
    texts = {} if thread is None else thread.unsaved_text
    return [
        AIMessage(text, id=message_id, response_metadata={"stopped": True})
        for message_id, text in texts.items()
        if text and message_id not in known_ids
    ]


def _as_update(channel: Any, old: Sequence[BaseMessage], repaired_messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the update that makes a channel hold the repaired messages."""
    if isinstance(channel, LastValue):
        return repaired_messages
    is_at_end = list(old) == repaired_messages[: len(old)]
    if not is_at_end and getattr(channel, "operator", None) is add_messages:
        return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *repaired_messages]
    # Any other reducer can only append.
    return [one for one in repaired_messages if not any(one is known for known in old)]

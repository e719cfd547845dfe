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
from stoppable.adapters.langgraph.threads import UNFINISHED, Thread

NOT_BEGUN = "The run was stopped before this call began: it had no effect."
MAY_HAVE_HAPPENED = "The run was stopped while this call was in flight: it may have taken effect."
NOT_KNOWN = "The run ended before this call was answered: it may have taken effect."


def repair(graph: Any, config: Any) -> bool:
    """Repair a thread whose tool calls have no answer, and return whether anything was repaired.

    For threads that were broken by a cancelled task or a crash. It does not touch a pending ``interrupt()``, and a
    second call does nothing. Persistent subgraphs are repaired too.
    """
    found = [mend(graph, where, None) for where in [thread_config(config), *_below(graph, config)]]
    return any(found)


async def arepair(graph: Any, config: Any) -> bool:
    """Do what ``repair`` does, with an async checkpointer."""
    found = [await amend(graph, where, None) for where in [thread_config(config), *_below(graph, config)]]
    return any(found)


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
    found = [await _awithdraw(graph, where) for where in [thread_config(config), *_below(graph, config)]]
    return any(found)


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
    mend(thread.graph, thread.config, thread)


async def aseal(thread: Thread) -> None:
    """Write the end of a stopped turn into its thread."""
    await amend(thread.graph, thread.config, thread)


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


def mend(graph: Any, config: Any, thread: Thread | None) -> bool:
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


async def amend(graph: Any, config: Any, thread: Thread | None) -> bool:
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
        isinstance(one, BaseMessage) for result in results for value in result.values() for one in _listed(value)
    )


def _listed(value: Any) -> list[Any]:
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
            mended = [*_answered(value, thread), *_texts(value, thread)]
            if len(mended) > len(value):
                updates[key] = _as_update(graph.channels.get(key), value, mended)
    return updates


def _answered(messages: Sequence[BaseMessage], thread: Thread | None) -> list[BaseMessage]:
    """Return the messages with an answer to each tool call, right after the call, where providers expect it."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    made: list[BaseMessage] = []
    missing: list[BaseMessage] = []
    for message in messages:
        if not isinstance(message, ToolMessage):
            made += missing
            missing = []
        made.append(message)
        if isinstance(message, AIMessage):
            missing = [_answer(call, thread) for call in message.tool_calls if call["id"] not in answered]
    return made + missing


def _answer(call: Any, thread: Thread | None) -> ToolMessage:
    if thread is None:
        text = NOT_KNOWN
    elif (known := thread.calls.get(call["id"])) is None:
        text = NOT_BEGUN
    elif known is UNFINISHED:
        text = MAY_HAVE_HAPPENED
    else:
        return known
    made_id = f"stopped-{call['id']}"  # a stable id: writing it twice adds one message
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error", id=made_id)


def _texts(messages: Sequence[BaseMessage], thread: Thread | None) -> list[BaseMessage]:
    known = {getattr(message, "id", None) for message in messages}
    said = {} if thread is None else thread.said
    return [
        AIMessage(text, id=made_id, response_metadata={"stopped": True})
        for made_id, text in said.items()
        if text and made_id not in known
    ]


def _as_update(channel: Any, old: Sequence[BaseMessage], mended: list[BaseMessage]) -> list[BaseMessage]:
    """Return the update that makes a channel hold the repaired messages."""
    if isinstance(channel, LastValue):
        return mended
    is_at_end = list(old) == mended[: len(old)]
    if not is_at_end and getattr(channel, "operator", None) is add_messages:
        return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *mended]
    return [one for one in mended if not any(one is known for known in old)]  # any other reducer can only append

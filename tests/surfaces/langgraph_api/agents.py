"""Agents for threads, beside those of the other protocols."""

import stoppable

from ..openai_api import agents as of_others
from ..openai_api.agents import GATES


async def recalling(messages: list) -> str:
    """Say what it was told, and wait if it was told to."""
    heard = [one["content"] for one in messages]
    GATES.calls.append(heard)
    if heard[-1] == "wait":
        stoppable.append_partial("so far ")
        GATES.reached.set()
        await stoppable.sleep(600)
    return f"{len(heard)}: {heard[-1]}"


async def graphlike(messages: list, thread_id: str | None = None) -> dict:
    """Keep the history itself, as a graph with a checkpointer: its result is the whole state."""
    GATES.calls.append((thread_id, messages))
    whole = [*messages, {"type": "ai", "id": "made", "content": f"in {thread_id}"}]
    return {"messages": whole, "steps": 2}


async def odd(result: list) -> dict:
    """Return what are no messages as messages."""
    return {"messages": result}


async def reporting(text: str) -> str:
    """Report on its way."""
    stoppable.emit("searching", pages=3)
    return text


AGENTS = (*of_others.AGENTS, recalling, graphlike, odd, reporting)

"""Agents that call tools, beside those of the other protocols."""

import asyncio

import stoppable

from ..ag_ui import agents as with_helpers
from ..openai_api.agents import GATES

_SECONDS = 600  # only a stop ends them


async def tooling(text: str) -> str:
    """Call a tool between two words; the text says what the tool does."""
    stoppable.append_partial("looking ")
    async with stoppable.boundary("tool", "search"):
        GATES.reached.set()
        match text:
            case "sleep":
                await asyncio.sleep(_SECONDS)
            case "wait":
                await GATES.released()
            case "hang":
                await asyncio.to_thread(GATES.release.wait, _SECONDS)
    async with stoppable.boundary("llm", "model"):
        stoppable.append_partial("found ")
    return "it"


@stoppable.agent
async def searcher(text: str) -> str:
    """Call a tool as a sub-agent."""
    return await tooling(text)


async def lead(text: str) -> str:
    """Let a sub-agent call a tool."""
    stoppable.append_partial("leading ")
    return await searcher(text)


async def reporting(text: str) -> str:
    """Report on its way: once by name, twice about one thing."""
    stoppable.emit("searching", pages=3)
    stoppable.emit("source", id="a", title="draft")
    stoppable.emit("source", id="a", title=text)
    return text


AGENTS = (*(agent for agent in with_helpers.AGENTS if agent.__name__ != "reporting"), tooling, lead, reporting)

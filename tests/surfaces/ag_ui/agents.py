"""Agents with sub-agents, beside those of the other protocols."""

import stoppable

from ..openai_api import agents as plain
from ..openai_api.agents import GATES


@stoppable.agent
async def helper(text: str) -> str:
    """Say a word; wait for a stop, fail, or ask another helper, if that is said."""
    stoppable.append_partial(f"{text} found ")
    if text == "wait":
        GATES.reached.set()
        await stoppable.sleep(600)
    if text == "fail":
        raise ValueError("the helper is broken")
    if text == "deep":
        return await helper("below")
    return f"helped with {text}"


async def team(text: str) -> str:
    """Ask a helper, and go on without one that fails."""
    stoppable.append_partial("asking ")
    try:
        return await helper(text)
    except ValueError:
        return "without help"


@stoppable.agent
async def worker(folder: str) -> str:
    """Work in four ways at once, as a sub-agent."""
    return await plain.research(folder)


async def crew(folder: str) -> str:
    """Let a sub-agent work in four ways at once."""
    stoppable.append_partial("the crew is at it ")
    return await worker(folder)


async def reporting(text: str) -> str:
    """Report on its way."""
    stoppable.emit("searching", pages=3)
    return text


async def structured(text: str) -> dict:
    """Return a value."""
    return {"text": text, "n": 1}


AGENTS = (*plain.AGENTS, team, crew, reporting, structured)

"""Agents of CrewAI with a scripted model, and a tool that waits until the test lets it go on."""

from __future__ import annotations

import asyncio
import json
import threading

from crewai import LLM, Agent, Crew, Task
from crewai.tools import BaseTool
from tests.waiting import until

import stoppable
from stoppable.testing import Reply, ToolCall

DEADLINE = 100  # only a test that hangs takes so long
# A stop never gets harder because a machine is slow.
PATIENT = stoppable.Policy(grace=DEADLINE, interrupt=DEADLINE, cancel=DEADLINE, blind_grace=DEADLINE)
DONE = Reply("Done.")


class Booking(BaseTool):
    """Books trips; the trips to the cities in ``held`` wait."""

    name: str = "book"
    description: str = "Books a trip."

    def __init__(self, *held):
        super().__init__()
        self._held = held
        self._begun, self._booked = [], []
        self._release = threading.Event()

    def _run(self, city: str) -> str:
        self._begun.append(city)
        if city in self._held:
            assert self._release.wait(DEADLINE), "the test never released it"
        self._booked.append(city)
        return f"booked {city}"

    @property
    def begun(self):
        return self._begun

    @property
    def booked(self):
        return self._booked

    @property
    def release(self):
        return self._release.set


def asking(*cities, text="", **options):
    """Return an answer that asks for a trip to each of the cities."""
    calls = [ToolCall(name="book", arguments=json.dumps({"city": city}), id=f"call-{city}") for city in cities]
    return Reply(text, tool_calls=calls, **options)


def model(server, **options):
    return LLM(model="openai/gpt-5-mini", base_url=server.url, api_key="none", **options)


def booker(llm, *tools, **options):
    """Return an agent that calls tools."""
    options = {"role": "booker", "goal": "Book trips.", "backstory": "Knows trains."} | options
    return Agent(llm=llm, tools=list(tools), **options)


def crew_of(*agents, description="A trip, please.", tasks=(), **options):
    """Return a crew, with one task for its first agent unless it is given tasks."""
    tasks = list(tasks) or [Task(description=description, expected_output="A sentence.", agent=agents[0])]
    return Crew(agents=list(agents), tasks=tasks, **options)


async def stop(body, condition, mode="graceful", release=lambda: None):
    """Stop a run when something is so, and return it after its end, with the first receipt."""
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(body, policy=PATIENT)
        await until(lambda: condition() or handle.run.outcome, DEADLINE)
        assert handle.run.outcome is None, handle.run.outcome
        receipt = await handle.stop(mode)
        release()
        outcome = await handle.outcome()
    assert (outcome.status, outcome.error) == (stoppable.Status.STOPPED, None), outcome
    assert handle.run.receipt.entered_after == ()
    return handle, receipt


def said_in(messages):
    """Return what was said after the task, as pairs of role and text."""
    return [(message["role"], message["content"]) for message in messages[2:]]

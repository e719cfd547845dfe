"""Sub-agents, by each of the ways that OpenHands has: they stop with the run that started them."""

import asyncio
from collections.abc import Sequence

import pytest
from openhands.sdk import Agent, Tool, register_tool
from openhands.sdk.subagent import register_agent
from openhands.sdk.tool import ToolDefinition
from openhands.tools.delegate.definition import DelegateAction, DelegateObservation
from openhands.tools.delegate.impl import DelegateExecutor
from openhands.tools.task import TaskToolSet
from openhands.tools.workflow import WorkflowToolSet

from stoppable.adapters.openhands import run_of, supervise

from .world import Scripted, asks, call, converse, hold, interrupts, says, status

WORK = [asks(hold("child", obeys=True)), *(asks(hold(f"more {number}")) for number in range(4)), says("child done")]


class DelegateTool(ToolDefinition[DelegateAction, DelegateObservation]):
    """What OpenHands had: its executor is still there."""

    name = "delegate"

    @classmethod
    def create(cls, conv_state=None, **params) -> Sequence["DelegateTool"]:
        executor = DelegateExecutor()
        return [
            cls(
                description="delegates",
                action_type=DelegateAction,
                observation_type=DelegateObservation,
                executor=executor,
            )
        ]


register_tool("delegate", DelegateTool)


def worker(_llm):
    return Agent(llm=Scripted.from_messages(list(WORK), usage_id="worker"), tools=[Tool(name="hold")])


register_agent("worker", worker, "works")

WORKFLOW = """
async def main(wf):
    return await wf.run_agent("work", subagent_type="worker")
"""
WAYS = {
    "task": (TaskToolSet.name, [asks(call("task", prompt="work", subagent_type="worker"))]),
    "workflow": (WorkflowToolSet.name, [asks(call("workflow", name="one", script=WORKFLOW))]),
    "bare threads": (
        "delegate",
        [
            asks(call("delegate", command="spawn", ids=["one"], agent_types=["worker"])),
            asks(call("delegate", command="delegate", tasks={"one": "work"})),
        ],
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_sub_agent_stops_with_its_parent_and_begins_nothing_more(world, tmp_path, way):
    tool, script = WAYS[way]
    conversation = supervise(converse(tmp_path, *script, says("done"), tools=(tool,)))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter child")
    models = world.notes.count("model")
    conversation.interrupt()
    await running
    run = run_of(conversation)
    assert run.outcome.status == "stopped", run.receipt
    assert world.notes.count("model") == models
    assert not any(note.startswith("enter more") for note in world.notes)
    names = [node.name for node in run.receipt.nodes if node.kind == "run"]
    assert "sub-agent" in names, names
    assert "tool hold" in names, names
    assert status(conversation) == "paused"
    assert interrupts(conversation) == 1
    conversation.send_message("again")
    await conversation.arun()
    assert status(conversation) == "finished"
    conversation.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_sub_agent_that_nobody_stops_finishes(world, tmp_path, way):
    tool, script = WAYS[way]
    conversation = supervise(converse(tmp_path, *script, says("done"), tools=(tool,)))
    world.release("child", *(f"more {number}" for number in range(4)))
    await conversation.arun()
    assert status(conversation) == "finished"
    assert world.notes.count("finish more 3") == 1
    assert run_of(conversation).outcome.status == "completed"
    conversation.close()

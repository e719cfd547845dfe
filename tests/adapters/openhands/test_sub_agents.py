"""Sub-agents, by each of the ways that OpenHands has: they stop with the run that started them."""

import asyncio
from collections.abc import Sequence

import pytest
from openhands.sdk import Agent, Tool, register_tool
from openhands.sdk.subagent import register_agent
from openhands.sdk.tool import ToolDefinition
from openhands.sdk.tool.tool import DeclaredResources
from openhands.tools.delegate.definition import DelegateAction, DelegateObservation
from openhands.tools.delegate.impl import DelegateExecutor
from openhands.tools.task import TaskToolSet
from openhands.tools.workflow import WorkflowToolSet

from stoppable.adapters.openhands import run_of, supervise, tool_calls

from .world import Scripted, answers, asks, call, converse, hold, interrupts, says, status
from .world import world as the_world

WORK = [asks(hold("child", obeys=True)), *(asks(hold(f"more {number}")) for number in range(4)), says("child done")]


class Delegate(DelegateExecutor):
    """Delegates only when the calls beside it have begun."""

    def __call__(self, action, conversation=None):
        if action.command == "delegate":
            for note in the_world.begin_after:
                the_world.seen(note)
        return super().__call__(action, conversation)


class DelegateTool(ToolDefinition[DelegateAction, DelegateObservation]):
    """What OpenHands had: its executor is still there."""

    name = "delegate"

    @classmethod
    def create(cls, conv_state=None, **params) -> Sequence["DelegateTool"]:
        executor = Delegate()
        return [
            cls(
                description="delegates",
                action_type=DelegateAction,
                observation_type=DelegateObservation,
                executor=executor,
            )
        ]

    def declared_resources(self, action):
        return DeclaredResources(keys=(), declared=True)  # so that two calls may be executed at a time


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
    names = [node.name for node in run.receipt.entries if node.kind == "run"]
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


def spawn(*names):
    return asks(call("delegate", command="spawn", ids=list(names), agent_types=["worker"] * len(names)))


def delegate(name):
    return call("delegate", name, command="delegate", tasks={name: "work"})


@pytest.fixture
def beside(world, tmp_path):
    """Run a conversation whose sub-agents, on bare threads, work beside other tool calls."""
    made = []

    async def make(names, *calls, begin_after=()):
        world.begin_after = list(begin_after)
        conversation = supervise(
            converse(tmp_path, spawn(*names), asks(*calls), says("done"), tools=("delegate", "hold"), at_once=3)
        )
        made.append(conversation)
        running = asyncio.create_task(conversation.arun())
        await world.saw("enter child", len(names))
        return conversation, running

    yield make
    world.begin_after = []
    for conversation in made:
        conversation.close()


async def test_the_stop_of_a_tool_call_leaves_the_sub_agent_of_another_alone(world, beside):
    conversation, running = await beside(
        ["one"], delegate("one"), hold("beside", "two", obeys=True), begin_after=["enter beside"]
    )
    tool_calls(conversation)["two"].stop("immediate", "too slow")
    await world.saw("obeyed beside")
    world.release("child", *(f"more {number}" for number in range(4)))
    await running
    assert status(conversation) == "finished"
    assert "obeyed child" not in world.notes
    assert "finish more 3" in world.notes
    assert "stopped (too slow)" in answers(conversation)["two"]
    assert "child done" in answers(conversation)["one"]


async def test_the_stop_of_a_tool_call_stops_its_own_sub_agent(world, beside):
    conversation, running = await beside(["one"], delegate("one"), hold("beside", "two"), begin_after=["enter beside"])
    tool_calls(conversation)["one"].stop("immediate", "too slow")
    await world.saw("obeyed child")
    world.release("beside")
    await running
    assert status(conversation) == "finished"
    assert not any(note.startswith("enter more") for note in world.notes)
    assert answers(conversation)["two"] == "beside done"


async def test_the_stop_of_one_of_two_calls_of_a_tool_leaves_the_sub_agent_of_the_other_alone(world, beside):
    conversation, running = await beside(["one", "two"], delegate("one"), delegate("two"))
    tool_calls(conversation)["one"].stop("immediate", "too slow")
    world.release("child", *(f"more {number}" for number in range(4)))
    await running
    assert status(conversation) == "finished"
    assert "child done" in answers(conversation)["two"]


async def test_an_interrupt_stops_the_sub_agents_of_two_calls_of_a_tool(world, beside):
    conversation, running = await beside(["one", "two"], delegate("one"), delegate("two"))
    conversation.interrupt()
    await running
    assert run_of(conversation).outcome.status == "stopped", run_of(conversation).receipt
    assert world.notes.count("obeyed child") == 2
    assert not any(note.startswith("enter more") for note in world.notes)

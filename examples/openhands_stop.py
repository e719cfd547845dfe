"""An OpenHands agent runs a command that takes too long: end that command alone, then interrupt the whole run.

    python examples/openhands_stop.py

needs ``pip install "stoppable[openhands]"`` and Python 3.12. A scripted model stands for yours.
"""

import asyncio
import json
import os
import tempfile

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("LOG_LEVEL", "ERROR")
os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")

from openhands.sdk import Agent, Conversation, Tool
from openhands.sdk.event import AgentErrorEvent
from openhands.sdk.llm import Message, MessageToolCall, TextContent
from openhands.sdk.testing import TestLLM
from openhands.tools.terminal import TerminalTool

from stoppable.adapters.openhands import run_of, supervise, tool_calls


def asks(command, call_id):
    arguments = json.dumps({"command": command})
    call = MessageToolCall(id=call_id, name="terminal", arguments=arguments, origin="completion")
    return Message(role="assistant", content=[TextContent(text="")], tool_calls=[call])


async def until_called(conversation, call_id):
    while call_id not in tool_calls(conversation):  # noqa: ASYNC110 - a page would be told by the events
        await asyncio.sleep(0.05)
    return tool_calls(conversation)[call_id]


async def main():
    model = TestLLM.from_messages([asks("sleep 300", "first"), asks("sleep 400", "second")])
    terminal = Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"})
    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(llm=model, tools=[terminal])
        conversation = supervise(Conversation(agent=agent, workspace=folder, visualizer=None))
        conversation.send_message("Sleep well.")
        running = asyncio.create_task(conversation.arun())

        call = await until_called(conversation, "first")
        call.stop("immediate", "this takes too long")
        await until_called(conversation, "second")  # the agent went on
        print("the agent was told:", answer(conversation))

        conversation.interrupt()
        await running
        run = run_of(conversation)
        print(f"the conversation is {conversation.state.execution_status.value}, its run {run.outcome.status}")
        for node in run.receipt.entries:
            print(f"  {node.kind} {node.name}: {node.fate}")
        conversation.close()


def answer(conversation):
    return next(event.error for event in conversation.state.events if isinstance(event, AgentErrorEvent))


asyncio.run(main())

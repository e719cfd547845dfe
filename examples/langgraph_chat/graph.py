"""An ordinary LangGraph graph: a model that streams, a tool, and a history. Nothing in it knows of stoppable."""

import asyncio
import json
import time

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


class Storyteller(BaseChatModel):
    """Stands for a model of a provider: it looks up what it is asked for, then talks about it at length."""

    _llm_type = "storyteller"

    def _answer(self, messages):
        if isinstance(messages[-1], HumanMessage) and "look up" in messages[-1].text:
            call = {"name": "look_up", "args": {"topic": "tides"}, "id": f"call-{len(messages)}"}
            return AIMessage("", tool_calls=[call])
        return AIMessage(" ".join(f"Sentence {n} of the answer." for n in range(1, 101)))

    def _generate(self, messages, **_):
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    async def _astream(self, messages, **_):
        answer = self._answer(messages)
        if answer.tool_calls:
            chunks = [
                {**call, "args": json.dumps(call["args"]), "type": "tool_call_chunk"} for call in answer.tool_calls
            ]
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=chunks))
            return
        for word in answer.text.split(" "):
            await asyncio.sleep(0.05)
            yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))


@tool
def look_up(topic: str) -> str:
    """Look something up in a slow, blocking library."""
    time.sleep(2)
    return f"Much is known about {topic}."


model = Storyteller()


async def talk(state: MessagesState):
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("talk", talk)
builder.add_node("tools", ToolNode([look_up]))
builder.add_edge(START, "talk")
builder.add_conditional_edges("talk", tools_condition)
builder.add_edge("tools", "talk")
graph = builder.compile(checkpointer=InMemorySaver(), name="chat")

"""An agent of LangChain on LangGraph, with a checkpointer."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from stopbench.subject import INSTRUCTIONS, MODEL, STEPS, Subject

CONFIG = {"configurable": {"thread_id": "session"}, "recursion_limit": STEPS}


class LangGraph(Subject):
    PACKAGES = ("langgraph", "langchain", "langchain-openai")
    STOPPABLE = "stoppable[langgraph]"

    async def open(self):
        tools = [tool(each) for each in self.tools]
        if self.delegates:
            booker = self.agent(tools)

            @tool
            async def helper(task: str) -> str:
                """Let another agent book the trip."""
                answer = await booker.ainvoke({"messages": [("user", task)]}, {"recursion_limit": STEPS})
                return answer["messages"][-1].text

            tools = [helper]
        self.main = self.agent(tools, checkpointer=InMemorySaver())

    def agent(self, tools, **options):
        model = ChatOpenAI(model=MODEL, base_url=self.url, api_key="none", max_retries=0)
        agent = create_agent(model, tools, system_prompt=INSTRUCTIONS, **options)
        if self.with_stoppable:
            from stoppable.adapters.langgraph import stoppable_graph

            return stoppable_graph(agent)
        return agent

    async def ask(self, text):
        await self.main.ainvoke({"messages": [("user", text)]}, CONFIG)

    async def ask_streamed(self, text):
        async for _ in self.main.astream({"messages": [("user", text)]}, CONFIG, stream_mode="messages"):
            pass

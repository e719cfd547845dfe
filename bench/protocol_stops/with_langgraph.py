"""The LangGraph API: the client of langgraph-sdk. The plain server is ``langgraph dev``, with the graph of graph.py."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from bench.protocol_stops.conversation import ASSISTANT, SECONDS, Told
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient


def said(text: str) -> dict:
    return {"messages": [{"role": "user", "content": text}]}


class LangGraph:
    def __init__(self, client: LangGraphClient, thread: str) -> None:
        self._client, self._thread = client, thread
        self._run = ""

    async def begin(self, text: str) -> None:
        self._run = (await self._client.runs.create(self._thread, ASSISTANT, input=said(text)))["run_id"]

    async def cancel(self) -> Told:
        await self._client.runs.cancel(self._thread, self._run, wait=True)
        run = await self._client.runs.get(self._thread, self._run)
        return Told(words=f"`{run['status']}`", is_end=True)

    async def end(self) -> str:
        return ""

    async def ask(self, text: str) -> str:
        values = await self._client.runs.wait(self._thread, ASSISTANT, input=said(text))
        return values["messages"][-1]["content"]

    async def kept(self) -> str:
        state = await self._client.threads.get_state(self._thread)
        return " ".join(str(message["content"]) for message in state["values"]["messages"])


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[LangGraph]:
    async with get_client(url=url, api_key="", timeout=SECONDS) as client:
        yield LangGraph(client, (await client.threads.create())["thread_id"])

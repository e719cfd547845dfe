"""The server of google-adk that bench/server.py measures: an agent without a model, sessions in memory."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator

os.environ["OTEL_SDK_DISABLED"] = "true"  # tracing is an option, and costs

from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.cli.utils.base_agent_loader import BaseAgentLoader
from google.adk.events import Event
from google.genai import types

from serving import serve


class Agent(BaseAgent):
    """Tells as many events as the message asks for, one each millisecond, or waits."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncIterator[Event]:
        count = int(ctx.user_content.parts[0].text)
        if not count:
            yield self._event(ctx, 0)
            await asyncio.sleep(3600)
        for n in range(count):
            await asyncio.sleep(0.001)
            yield self._event(ctx, n)

    def _event(self, ctx: InvocationContext, n: int) -> Event:
        content = types.Content(role="model", parts=[types.Part(text=f"a few words {n}")])
        # Partial, as a token is: the session does not keep it.
        return Event(author=self.name, invocation_id=ctx.invocation_id, content=content, partial=True)


class Loader(BaseAgentLoader):
    def load_agent(self, agent_name: str) -> BaseAgent:
        return Agent(name=agent_name)

    def list_agents(self) -> list[str]:
        return ["bench"]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = get_fast_api_app(
            agents_dir=folder,
            agent_loader=Loader(),
            session_service_uri="memory://",
            artifact_service_uri="memory://",
            memory_service_uri="memory://",
            web=False,
            auto_create_session=True,
        )
        serve(app)


if __name__ == "__main__":
    main()

"""An ADK app for several uvicorn workers, which share the runs and the sessions in files."""

import asyncio
import functools
import os
import warnings

warnings.simplefilter("ignore")

import aiosqlite  # noqa: E402
import uvicorn  # noqa: E402
from google.adk.agents.llm_agent import LlmAgent  # noqa: E402
from google.adk.cli.fast_api import get_fast_api_app  # noqa: E402
from google.adk.cli.utils.base_agent_loader import BaseAgentLoader  # noqa: E402
from google.adk.models.base_llm import BaseLlm  # noqa: E402
from google.adk.models.llm_response import LlmResponse  # noqa: E402
from google.genai import types  # noqa: E402

from stoppable import Supervisor  # noqa: E402
from stoppable.adapters.adk import install  # noqa: E402

FOLDER = os.environ["FOLDER"]

# ADK waits five seconds for a file of sessions that another worker has locked, and has no setting for it.
aiosqlite.connect = functools.partial(aiosqlite.connect, timeout=120)


class Asking(BaseLlm):
    model: str = "asking"

    async def generate_content_async(self, llm_request, stream=False):
        call = types.FunctionCall(name="hang", args={})
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(function_call=call)]))


async def hang() -> str:
    """Work until it is stopped."""
    await asyncio.sleep(3600)
    return "never"


class Loader(BaseAgentLoader):
    def load_agent(self, agent_name):
        return LlmAgent(name="hanging", model=Asking(), tools=[hang])

    def list_agents(self):
        return ["hanging"]


app = get_fast_api_app(
    agents_dir=FOLDER, agent_loader=Loader(), session_service_uri=f"sqlite:///{FOLDER}/sessions.db", web=False
)
install(app, Supervisor(f"sqlite:///{FOLDER}/runs.db"))


@app.get("/pid")
async def pid():
    return os.getpid()


if __name__ == "__main__":
    uvicorn.run(app, fd=int(os.environ["LISTENER"]))

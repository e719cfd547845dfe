"""An agent that looks something up and then writes a long text. `MODEL=gemini-flash-latest` gives it a real model."""

import asyncio
import os

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types


async def look_up(topic: str, seconds: float = 3.0) -> str:
    """Look something up, which takes a while."""
    await asyncio.sleep(seconds)
    return f"Much is known about {topic}."


class Rehearsed(BaseLlm):
    """A model that needs no key: it asks for the tool, then writes two hundred words, one after the other."""

    model: str = "rehearsed"

    async def generate_content_async(self, llm_request, stream=False):  # noqa: FBT002 - the base's
        parts = [part for content in llm_request.contents for part in content.parts or []]
        if not parts[-1].function_response:
            call = types.FunctionCall(name="look_up", args={"topic": parts[-1].text or "nothing"})
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(function_call=call)]))
            return
        words = [f"word{number} " for number in range(200)]
        for word in words:
            await asyncio.sleep(0.05)
            if stream:
                yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=word)]), partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="".join(words))]))


root_agent = LlmAgent(
    name="writer",
    model=os.environ.get("MODEL") or Rehearsed(),
    instruction="Look the topic up, then write about it at length.",
    tools=[look_up],
)

"""The OpenAI API: the client of openai. There is no official server of it in Python."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import openai
from bench.protocol_stops.conversation import ASSISTANT, SECONDS, Told


class Responses:
    """Responses in the background, and their cancel."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client
        self._id = ""

    async def begin(self, text: str) -> None:
        self._id = (await self._client.responses.create(model=ASSISTANT, input=text, background=True)).id

    async def cancel(self) -> Told:
        return Told(words=f"`{(await self._client.responses.cancel(self._id)).status}`", is_end=True)

    async def end(self) -> str:
        return ""

    async def ask(self, text: str) -> str:
        response = await self._client.responses.create(model=ASSISTANT, input=text, previous_response_id=self._id)
        return response.output_text

    async def kept(self) -> str:
        return (await self._client.responses.retrieve(self._id)).output_text


class Chat:
    """Chat completions, whose cancel is to leave the stream; nothing can be asked of one later."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client
        self._messages: list[dict] = []

    async def begin(self, text: str) -> None:
        self._messages = [{"role": "user", "content": text}]
        self._stream = await self._client.chat.completions.create(model=ASSISTANT, messages=self._messages, stream=True)

    async def cancel(self) -> Told:
        await self._stream.close()
        return Told(words="nothing: it leaves", is_end=False)

    async def end(self) -> str:
        return ""

    async def ask(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        answer = await self._client.chat.completions.create(model=ASSISTANT, messages=self._messages)
        return answer.choices[0].message.content or ""

    async def kept(self) -> None:
        return None


@contextlib.asynccontextmanager
async def opened(url: str, api: str) -> AsyncIterator[Responses | Chat]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:
        yield Responses(client) if api == "responses" else Chat(client)

"""Agents as people have them: a loop around the client of a provider, without a line of stoppable."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm asks the internet when it is imported
ROUNDS = 20
ASK = [{"role": "user", "content": "count"}]


def _repeat(ask: Callable[[], Any]) -> Callable[[], None]:
    def agent() -> None:
        for _ in range(ROUNDS):
            ask()

    return agent


def _repeat_async(ask: Callable[[], Any]) -> Callable[[], Any]:
    async def agent() -> None:
        for _ in range(ROUNDS):
            await ask()

    return agent


def _read(stream: Any) -> None:
    for _ in stream:
        pass


async def _read_async(stream: Any) -> None:
    async for _ in stream:
        pass


def _either(
    blocking: Callable[[bool], Any], awaited: Callable[[bool], Any], *, is_async: bool, is_stream: bool
) -> Callable[[], Any]:
    """Return the agent: ``awaited`` returns a coroutine whose result, if it is a stream, is read."""
    if not is_async:
        return _repeat(lambda: _read(blocking(True)) if is_stream else blocking(False))

    async def ask() -> None:
        answer = await awaited(is_stream)
        if is_stream:
            await _read_async(answer)

    return _repeat_async(ask)


def openai_chat(url: str, **which: bool) -> Callable[[], Any]:
    import openai

    options = {"base_url": f"{url}/v1", "api_key": "key"}
    client, async_client = openai.OpenAI(**options), openai.AsyncOpenAI(**options)
    return _either(
        lambda stream: client.chat.completions.create(model="gpt-5", messages=ASK, stream=stream),
        lambda stream: async_client.chat.completions.create(model="gpt-5", messages=ASK, stream=stream),
        **which,
    )


def openai_responses(url: str, **which: bool) -> Callable[[], Any]:
    import openai

    options = {"base_url": f"{url}/v1", "api_key": "key"}
    client, async_client = openai.OpenAI(**options), openai.AsyncOpenAI(**options)
    return _either(
        lambda stream: client.responses.create(model="gpt-5", input="count", stream=stream),
        lambda stream: async_client.responses.create(model="gpt-5", input="count", stream=stream),
        **which,
    )


def anthropic(url: str, **which: bool) -> Callable[[], Any]:
    import anthropic

    options: dict[str, Any] = {"base_url": url, "api_key": "key"}
    client, async_client = anthropic.Anthropic(**options), anthropic.AsyncAnthropic(**options)
    ask: dict[str, Any] = {"model": "claude", "max_tokens": 100, "messages": ASK}
    return _either(
        lambda stream: client.messages.create(**ask, stream=stream),
        lambda stream: async_client.messages.create(**ask, stream=stream),
        **which,
    )


def google(url: str, **which: bool) -> Callable[[], Any]:
    from google import genai

    client = genai.Client(api_key="key", http_options={"base_url": url})
    ask = {"model": "gemini", "contents": "count"}

    def method(models: Any, stream: bool) -> Any:
        return models.generate_content_stream if stream else models.generate_content

    return _either(
        lambda stream: method(client.models, stream)(**ask),
        lambda stream: method(client.aio.models, stream)(**ask),
        **which,
    )


def mistral(url: str, **which: bool) -> Callable[[], Any]:
    from mistralai.client import Mistral

    chat = Mistral(api_key="key", server_url=url).chat
    ask = {"model": "mistral-small", "messages": ASK}
    return _either(
        lambda stream: (chat.stream if stream else chat.complete)(**ask),
        lambda stream: (chat.stream_async if stream else chat.complete_async)(**ask),
        **which,
    )


def cohere(url: str, **which: bool) -> Callable[[], Any]:
    import cohere

    client, async_client = cohere.ClientV2("key", base_url=url), cohere.AsyncClientV2("key", base_url=url)
    ask = {"model": "command", "messages": ASK}

    async def awaited(stream: bool) -> Any:
        return async_client.chat_stream(**ask) if stream else await async_client.chat(**ask)

    return _either(lambda stream: (client.chat_stream if stream else client.chat)(**ask), awaited, **which)


def ollama(url: str, **which: bool) -> Callable[[], Any]:
    import ollama

    client, async_client = ollama.Client(host=url), ollama.AsyncClient(host=url)
    return _either(
        lambda stream: client.chat(model="llama", messages=ASK, stream=stream),
        lambda stream: async_client.chat(model="llama", messages=ASK, stream=stream),
        **which,
    )


def litellm(url: str, **which: bool) -> Callable[[], Any]:
    import litellm

    litellm.suppress_debug_info = True
    ask = {"model": "openai/gpt-5", "messages": ASK, "api_base": f"{url}/v1", "api_key": "key"}
    return _either(
        lambda stream: litellm.completion(**ask, stream=stream),
        lambda stream: litellm.acompletion(**ask, stream=stream),
        **which,
    )


def bedrock(url: str, **which: bool) -> Callable[[], Any]:
    import boto3

    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "key", "region_name": "eu-central-1"}
    client = boto3.client("bedrock-runtime", endpoint_url=url, **keys)
    ask = {"modelId": "claude", "messages": [{"role": "user", "content": [{"text": "count"}]}]}

    def blocking(stream: bool) -> Any:
        return client.converse_stream(**ask)["stream"] if stream else client.converse(**ask)

    return _either(blocking, _none, **which)


def requests(url: str, **which: bool) -> Callable[[], Any]:
    import requests

    def blocking(stream: bool) -> Any:
        body = {"model": "gpt-5", "messages": ASK, "stream": stream}
        response = requests.post(f"{url}/v1/chat/completions", json=body, stream=stream, timeout=60)
        return response.iter_lines() if stream else response.json()

    return _either(blocking, _none, **which)


def urllib(url: str, **which: bool) -> Callable[[], Any]:
    import json
    from urllib.request import Request, urlopen

    def blocking(stream: bool) -> Any:
        body = json.dumps({"model": "gpt-5", "messages": ASK, "stream": stream}).encode()
        answer = urlopen(Request(f"{url}/v1/chat/completions", body), timeout=60)
        return answer if stream else json.loads(answer.read())

    return _either(blocking, _none, **which)


def aiohttp(url: str, **which: bool) -> Callable[[], Any]:
    import aiohttp

    async def agent() -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(ROUNDS):
                body = {"model": "gpt-5", "messages": ASK, "stream": which["is_stream"]}
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    if which["is_stream"]:
                        await _read_async(response.content)
                    else:
                        await response.json()

    return agent


def grpc(url: str, **which: bool) -> Callable[[], Any]:
    import grpc
    import grpc.aio

    def method(channel: Any, stream: bool) -> Any:
        service = "/llm.Model/Generate"
        return channel.unary_stream(f"{service}Stream") if stream else channel.unary_unary(service)

    if not which["is_async"]:
        channel = grpc.insecure_channel(url)
        return _either(lambda stream: method(channel, stream)(b""), _none, **which)

    async def agent() -> None:
        async with grpc.aio.insecure_channel(url) as channel:
            ask = method(channel, which["is_stream"])
            for _ in range(ROUNDS):
                await (_read_async(ask(b"")) if which["is_stream"] else ask(b""))

    return agent


def _none(_stream: bool) -> Any:
    raise NotImplementedError


BLOCKING_ONLY = (bedrock, requests, urllib)
ASYNC_ONLY = (aiohttp,)
BOTH = (openai_chat, openai_responses, anthropic, google, mistral, cohere, ollama, litellm)
MODEL = {
    "bedrock": "/model/claude/converse",
    "google": "/models/gemini:",
    "anthropic": "claude",
    "mistral": "mistral-small",
    "cohere": "command",
    "ollama": "llama",
    "grpc": "llm.Model/Generate",
}
"""What the receipt says of the model."""


# The same, for programs that start an agent by its name


def blocking(client: str, url: str, is_stream: bool) -> None:
    """Talk to a model with a blocking client."""
    globals()[client](url, is_async=False, is_stream=is_stream)()


async def awaited(client: str, url: str, is_stream: bool) -> None:
    """Talk to a model with an async client."""
    await globals()[client](url, is_async=True, is_stream=is_stream)()


AGENTS = {"blocking": blocking, "awaited": awaited}

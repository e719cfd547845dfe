"""Model servers: a stop closes the request, and the server generates no more for it.

Each generates for one request at a time here, and each request is for a text without an end: that the server answers
another request shows that it generates no more. Asking llama.cpp how busy it is would keep it from looking whether its
clients are still there, so it is not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest
import transformers
from tests.ports import held_port
from tests.waiting import until

import stoppable

from .tiny import DEADLINE, PROMPT, make_model, make_tokenizer

LLAMA_SERVER = Path(__file__).parent / "llama_server.py"
SERVERS = ["llama.cpp"] if transformers.__version__.startswith("4.") else ["llama.cpp", "transformers serve"]
CLIENT = {"api_key": "none", "max_retries": 0}
MESSAGES = {"messages": [{"role": "user", "content": PROMPT}]}
ENDLESS = {**MESSAGES, "max_tokens": 10_000_000}


@contextlib.contextmanager
def started(command, **options):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", *command], env=environment, stderr=subprocess.DEVNULL, **options
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def llama_cpp(folder):
    with started([str(LLAMA_SERVER), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield f"{process.stdout.readline().strip()}/v1", {"model": "tiny", "extra_body": {"ignore_eos": True}}


@contextlib.contextmanager
def transformers_serve(folder):
    make_model(eos_token_id=None, bos_token_id=None).save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    code = "from transformers.cli.transformers import main; main()"
    with held_port() as port:
        command = ["-c", code, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        with started(command, stdout=subprocess.DEVNULL):
            yield f"http://127.0.0.1:{port}/v1", {"model": str(folder)}


@pytest.fixture(scope="module", params=SERVERS)
def server(request, tmp_path_factory):
    """Return the address of a server, and what every request to it has."""
    serve = {"llama.cpp": llama_cpp, "transformers serve": transformers_serve}[request.param]
    with serve(tmp_path_factory.mktemp("model")) as (url, options):
        yield url, options


@pytest.fixture
async def asks(server):
    """Return a client, and what every request has, once the server answers."""
    url, options = server
    async with openai.AsyncOpenAI(base_url=url, **CLIENT) as client, asyncio.timeout(2 * DEADLINE):
        while True:
            with contextlib.suppress(openai.APIConnectionError):
                await client.chat.completions.create(**options, **MESSAGES, max_tokens=1)
                break
            await asyncio.sleep(0.1)
    async with openai.AsyncOpenAI(base_url=url, **CLIENT) as client:
        yield client, options


@pytest.fixture(autouse=True)
def instrumented():
    stoppable.instrument()
    yield
    stoppable.uninstrument()


async def answers_another(client, options):
    async with asyncio.timeout(DEADLINE):
        answer = await client.chat.completions.create(**options, **MESSAGES, max_tokens=1)
    return answer.usage.completion_tokens == 1


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_the_stop_of_a_stream_ends_its_generation(asks, mode):
    client, options = asks

    async def agent():
        async for chunk in await client.chat.completions.create(**options, **ENDLESS, stream=True):
            stoppable.append_partial(chunk.choices[0].delta.content or "")

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.partial, DEADLINE)
    await handle.stop(mode)
    assert (await handle.outcome()).status == "stopped"
    assert await answers_another(client, options)


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_the_stop_of_a_stream_on_a_thread_ends_its_generation(asks, server, mode):
    def agent():
        with openai.OpenAI(base_url=server[0], **CLIENT) as client:
            for chunk in client.chat.completions.create(**server[1], **ENDLESS, stream=True):
                stoppable.append_partial(chunk.choices[0].delta.content or "")

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.partial, DEADLINE)
    await handle.stop(mode)
    assert (await handle.outcome()).status == "stopped"
    assert await answers_another(*asks)


@pytest.mark.parametrize("server", ["llama.cpp"], indirect=True)
async def test_llama_cpp_ends_a_call_that_is_not_streamed_as_well(asks):
    client, options = asks

    async def agent():
        await client.chat.completions.create(**options, **ENDLESS)

    handle = await stoppable.spawn(agent)
    slots = str(client.base_url).replace("/v1/", "/slots")
    async with httpx.AsyncClient() as http:
        while not (await http.get(slots)).json()[0]["is_processing"]:
            await asyncio.sleep(0.01)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert await answers_another(client, options)

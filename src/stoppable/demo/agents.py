"""One agent for each case of a stop, and the model that they call."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import stoppable
from stoppable import sync

_SCRIPTED = "STOPPABLE_DEMO_MODEL"  # in the environment, so that agent processes find it too
_OPENAI = "https://api.openai.com/v1"
_TIMEOUT = 60.0
_ANSWER = (
    "A stop is one signal that travels down a tree of work, and one record that travels up. What was paid for is kept: "
    "a call in flight may finish, and a stream stops between two words. The receipt says what was in flight, what "
    "became of it, and what could not be ended. "
)
_WORDS_PER_SECOND = 12.0


def is_scripted() -> bool:
    """Return whether no real model is set; a key alone is not enough to spend money on a demo."""
    return not (os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_MODEL"))


@contextmanager
def demo_model(words_per_second: float = _WORDS_PER_SECOND) -> Iterator[str]:
    """Yield the base URL of the model of the demo, which is scripted unless the environment names a real one."""
    if not is_scripted():
        yield _base_url()
        return
    from stoppable.testing import ModelServer, Reply  # noqa: PLC0415 - only where there is no real model

    with ModelServer(default=Reply(_ANSWER, rate=words_per_second)) as server:
        os.environ[_SCRIPTED] = server.url
        try:
            yield server.url
        finally:
            os.environ.pop(_SCRIPTED, None)


def _base_url() -> str:
    return os.environ.get(_SCRIPTED) or os.environ.get("OPENAI_BASE_URL") or _OPENAI


async def chat(prompt: str) -> str:
    """Ask the model; its words become the partial of the current run as they arrive."""
    return await stoppable.to_thread(_chat, prompt)


@stoppable.boundary("llm", "chat")
def _chat(prompt: str) -> str:
    connection, path = _connect(_base_url())
    words: list[str] = []
    try:
        connection.request("POST", path, json.dumps(_body(prompt)), _headers())
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise RuntimeError(f"the model answered {response.status}: {response.read(500).decode(errors='replace')}")
        for line in stoppable.stream(response):
            word = _word(line)
            words.append(word)
            if word:
                stoppable.append_partial(word)
    finally:
        connection.close()
    return "".join(words).strip()


def _connect(base: str) -> tuple[http.client.HTTPConnection, str]:
    parts = urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=_TIMEOUT), f"{parts.path.rstrip('/')}/chat/completions"


def _body(prompt: str) -> dict[str, Any]:
    model = os.environ.get("OPENAI_MODEL", "scripted")
    return {"model": model, "stream": True, "messages": [{"role": "user", "content": prompt}]}


def _headers() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    secret = {"Authorization": f"Bearer {key}"} if key and not is_scripted() else {}
    return {"Content-Type": "application/json", **secret}


def _word(line: bytes) -> str:
    data = line.strip().removeprefix(b"data:").strip()
    if not data.startswith(b"{"):
        return ""
    choices = json.loads(data).get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


_SWALLOWED_AT_MOST = 20


@stoppable.agent
async def stepper(steps: int = 10, seconds: float = 1.0, label: str = "") -> str:
    """Take ten steps of a second each; a stop wakes it at once, and the steps it took are kept."""
    for step in range(1, steps + 1):
        await stoppable.sleep(seconds)
        stoppable.append_partial(f"{label} step {step}/{steps}\n".lstrip())
        stoppable.emit("step", step=step, of=steps)
    return f"{steps} steps"


@stoppable.agent
async def searcher(question: str) -> str:
    """Ask the model one question; the answer streams in, and a stop keeps what has arrived."""
    return await chat(f"Answer in three sentences: {question}")


@stoppable.agent
async def writer(topic: str, findings: list[str]) -> str:
    """Write up what the searchers found."""
    return await chat(f"Summarize for {topic}: " + " ".join(findings))


@stoppable.agent
async def research(topic: str = "stopping AI agents") -> str:
    """Research a topic with sub-agents, each of which calls a model over HTTP: a stop reaches all of them."""
    await chat(f"Name two questions about {topic}")
    stoppable.append_partial("\n")
    stoppable.emit("step", step=1, of=3)
    questions = (f"What is known about {topic}?", f"What is missing in {topic}?")
    searchers = [await stoppable.spawn(searcher, question) for question in questions]
    findings = [await one.result() for one in searchers]
    stoppable.append_partial("\n".join(f"found: {finding}" for finding in findings) + "\n")
    stoppable.emit("step", step=2, of=3)
    report = await writer(topic, findings)
    stoppable.emit("step", step=3, of=3)
    return report


@stoppable.agent
async def thread_tool(rounds: int = 60) -> int:
    """Call a blocking tool on a thread, which notices the stop and leaves its loop."""
    return await stoppable.to_thread(_crunch, rounds)


@stoppable.boundary("tool", "crunch")
def _crunch(rounds: int) -> int:
    for done in range(rounds):
        if stoppable.should_stop():
            return done
        stoppable.set_partial({"rounds": done})
        stoppable.emit("step", step=done, of=rounds)
        sync.sleep(0.5)
    return rounds


@stoppable.agent
async def process_tree(seconds: int = 300) -> str:
    """Start a process that starts two more, one of them in another session: all of them end with the run."""
    nap = f"import time; time.sleep({seconds})"
    code = (
        "import subprocess, sys\n"
        f"nap = [sys.executable, '-c', {nap!r}]\n"
        "children = [subprocess.Popen(nap), subprocess.Popen(nap, start_new_session=True)]\n"
        "[child.wait() for child in children]\n"
    )
    result = await stoppable.run_process([sys.executable, "-c", code])
    return result.stdout


@stoppable.agent
async def stubborn() -> str:
    """Swallow every exception, as bad retry loops do: it gets no further effect, however often it tries."""
    exceptions = 0
    while exceptions < _SWALLOWED_AT_MOST:
        try:
            async with stoppable.boundary("tool", "poke"):
                stoppable.append_partial("poked\n")
            await asyncio.sleep(0.25)
        except BaseException:
            exceptions += 1
            stoppable.emit("swallowed", step=exceptions, of=_SWALLOWED_AT_MOST)
            await _nap()
    return f"gave up after swallowing {exceptions}"


async def _nap() -> None:
    with contextlib.suppress(asyncio.CancelledError):  # this one too
        await asyncio.sleep(0.25)


@stoppable.agent
def blocked_thread(seconds: float = 120.0) -> str:
    """Block a thread in C code, which cannot be ended: the run is lost, and its receipt names the line."""
    with stoppable.boundary("tool", "block"):
        time.sleep(seconds)  # noqa: TID251 - the very thing it shows
    return "woke up"


AGENTS: Mapping[str, Callable[..., Any]] = {
    agent.__name__: agent
    for agent in (stepper, research, searcher, writer, thread_tool, process_tree, stubborn, blocked_thread)
}
"""By name, as ``stoppable serve --demo`` offers them."""

"""A model over HTTP: one that speaks chat completions, from the environment, or a scripted one that needs no key."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import stoppable

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

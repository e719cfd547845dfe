"""Decides which requests are model calls, and under which name a request is listed."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from typing import NamedTuple

MODEL_URLS = "STOPPABLE_MODEL_URLS"
"""The environment variable with patterns of further model calls, such as ``llm.example.com/ask*``."""

# POST to one of these is a model call, whatever the host: gateways and servers of one's own have the same paths.
_MODEL_PATHS = re.compile(
    r"""
    /completions $ | /responses $ | /embeddings $ | /conversations $                             # OpenAI, Mistral
    | /images/(generations|edits) $ | /audio/(speech|transcriptions|translations) $
    | /v1/messages $ | /anthropic/.*/messages $                                                  # Anthropic
    | :(stream)?(generate|raw)?(Content|Predict|predict)$ | :(batch)?embedContents?$             # Google
    | /v[12]/(chat|generate|embed|rerank) $ | /chat-stream $                                     # Cohere
    | /api/(chat|generate|embed|embeddings) $                                                    # Ollama
    | /model/[^/]+/(invoke|converse)(-with-response-stream|-stream)? $                           # Bedrock
    """,
    re.IGNORECASE | re.VERBOSE,
)
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,80})"')
_GRPC_MODEL_METHODS = re.compile(r"(Generate|Chat|Predict|Completion|Embed|Infer)", re.IGNORECASE)
_MOST_OF_BODY = 1 << 16
_LONGEST = 120
_SECRET = re.compile(r"(?=[^/]*\d)[^/]{24,}")
"""A part of a path that may be a key: long, with a digit."""


class Label(NamedTuple):
    """The kind and the name of the boundary of a request."""

    kind: str
    name: str


def of_request(method: str, host: str, path: str, body: object = None) -> Label:
    """Return the label of a request; never with its query, which may contain a key."""
    label = _of_url(method.upper(), host, path.partition("?")[0], os.environ.get(MODEL_URLS, ""))
    return Label("llm", _clean(label.name + _model_in(body))) if label.kind == "llm" else label


@functools.lru_cache(maxsize=256)  # an agent sends most of its requests to few places
def _of_url(method: str, host: str, path: str, listed: str) -> Label:
    if method == "POST" and (_MODEL_PATHS.search(path) is not None or _is_listed(f"{host}{path}", listed)):
        return Label("llm", f"{host}{path}")
    return Label("http", _clean(f"{method} {host}{_SECRET.sub('…', path)}"))


def of_grpc(target: str, method: str) -> Label:
    """Return the label of a gRPC call; ``method`` is ``/package.Service/Method``."""
    service, _, name = method.lstrip("/").rpartition("/")
    is_model = ("generativelanguage" in service or "aiplatform" in service or "llm" in service.lower()) and bool(
        _GRPC_MODEL_METHODS.search(name)
    )
    is_model = is_model or _is_listed(f"{target}{method}")
    return Label("llm" if is_model else "http", _clean(f"{target}{method}".lstrip("/")))


def of_websocket(host: str, path: str) -> Label:
    """Return the label of what is sent to or received from a websocket."""
    is_model = path.partition("?")[0].endswith("/realtime") or _is_listed(f"{host}{path}")
    return Label("llm" if is_model else "http", _clean(f"WS {host}{_SECRET.sub('…', path.partition('?')[0])}"))


def _is_listed(url: str, listed: str | None = None) -> bool:
    patterns = (os.environ.get(MODEL_URLS, "") if listed is None else listed).split(",")
    wanted = (pattern.strip().removeprefix("https://").removeprefix("http://") for pattern in patterns)
    return any(fnmatch.fnmatchcase(url, pattern) for pattern in wanted if pattern)


def _model_in(body: object) -> str:
    """Return the name of the model that a JSON body asks for, after a space; empty if there is none."""
    if isinstance(body, str):
        body = body[:_MOST_OF_BODY].encode()
    if not isinstance(body, bytes | bytearray):
        return ""
    found = _MODEL.search(body, 0, _MOST_OF_BODY)
    return "" if found is None else f" {found[1].decode(errors='replace')}"


def _clean(name: str) -> str:
    if len(name) <= _LONGEST and name.isprintable():
        return name
    return "".join(char if char.isprintable() else "?" for char in name[:_LONGEST])

"""The text of model calls, which becomes the partial of a run whose agent sets none itself.

What arrives is only kept as it is; it is read when somebody asks for the partial, which most runs never do.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from stoppable._core.node import RunNode
from stoppable._core.participants import lock
from stoppable._core.run import AutomaticPartial

_MOST_RAW = 1 << 18
"""Bytes of one answer that are kept unread: an event of a stream is about twenty times as long as its text."""
_MOST_TEXT = 1 << 20
"""Characters of all answers of a run; the oldest ones are dropped."""
_MOST_ANSWERS = 1024
_NEWEST = 16
"""Answers of which the data is kept as well: embeddings, for example, are large and contain no text."""
_PRELUDE, _CHECKSUM = 12, 4


class ModelAnswer:
    """What one model call has answered so far."""

    __slots__ = ("_raw", "_seen", "_size", "_text")

    def __init__(self) -> None:
        self._raw: list[bytes] = []
        self._size = 0
        self._text = ""
        self._seen = (0, "")  # the number of pieces that were read last, and what they said

    def add(self, data: bytes) -> None:
        """Keep data that has arrived."""
        self._raw.append(data)
        self._size += len(data)
        if self._size > _MOST_RAW:
            self._settle()

    def text(self) -> str:
        """Return the text that has arrived."""
        pieces = list(self._raw)
        if len(pieces) != self._seen[0]:
            self._seen = len(pieces), _text_of(b"".join(pieces))
        return self._text + self._seen[1]

    def keep_text_only(self) -> None:
        """Forget the data: the answer is complete."""
        self._text = self.text()
        self._raw = []
        self._size = 0
        self._seen = (0, "")

    def _settle(self) -> None:
        """Read all but an event that may still be incomplete."""
        data = b"".join(self._raw)
        end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else data.rfind(b"\n") + 1
        if end > 0:
            self._text += _text_of(data[:end])
        # Of something else that is as long, such as an image, nothing is kept.
        self._raw = [data[end:]] if end > 0 else []
        self._size = sum(map(len, self._raw))
        self._seen = (0, "")


class ModelAnswers(AutomaticPartial):
    """The partial of a run whose agent sets none: the text of its model calls, in the order in which they began."""

    __slots__ = ("_complete", "_newest", "_size")

    def __init__(self) -> None:
        super().__init__()
        self._newest: deque[ModelAnswer] = deque()
        self._complete: deque[ModelAnswer] = deque()
        self._size = 0  # of the texts of those that are complete

    def begin(self) -> ModelAnswer:
        """Return the place for the next answer."""
        answer = ModelAnswer()
        with lock:
            self._newest.append(answer)
            oldest = self._newest.popleft() if len(self._newest) > _NEWEST else None
        if oldest is not None:
            oldest.keep_text_only()
            self._keep(oldest)
        return answer

    def value(self) -> object:
        """Return the text of all answers, with an empty line between two; None if there is none."""
        answers = (*list(self._complete), *list(self._newest))
        return "\n\n".join(filter(None, (answer.text() for answer in answers))) or None

    def _keep(self, answer: ModelAnswer) -> None:
        """Keep the text of an answer, and of all of them no more than a limit."""
        with lock:
            if text := answer.text():
                self._complete.append(answer)
                self._size += len(text)
            while self._size > _MOST_TEXT or len(self._complete) > _MOST_ANSWERS:
                self._size -= len(self._complete.popleft().text())


def note_answer(run: RunNode) -> ModelAnswer | None:
    """Return the place for the answer of a model call; None if the agent sets a partial of its own."""
    recorded = run.recorded
    if recorded is None:
        with lock:
            recorded = run.recorded = run.recorded or ModelAnswers()
    return recorded.begin() if isinstance(recorded, ModelAnswers) else None


# Reading: every known format is tried, because gateways of one provider often speak the format of another.


def _text_of(data: bytes) -> str:
    return "".join(filter(None, map(_text_in, _values(_plain(data)))))


def _plain(data: bytes) -> bytes:
    if data[:2] == b"\x1f\x8b":
        try:
            return zlib.decompressobj(31).decompress(data)
        except zlib.error:
            return b""
    return data


def _values(data: bytes) -> Iterator[Any]:
    """Yield the JSON values of an answer: one, lines of them, an array as far as it has come, or a stream of events."""
    if data[:1] == b"\x00":
        yield from _aws_events(data)
        return
    text = data.decode(errors="replace").lstrip()
    if text[:1] in ("{", "["):
        yield from _json_values(text)
        return
    for line in text.splitlines():
        if line.startswith("data:"):
            yield from _json_values(line[5:].strip())


_decoder = json.JSONDecoder()


def _json_values(text: str) -> Iterator[Any]:
    at = 1 if text[:1] == "[" else 0
    while at < len(text):
        if text[at] != "{":
            at += 1
            continue
        try:
            value, at = _decoder.raw_decode(text, at)
        except ValueError:
            return  # the rest has not arrived
        yield value


def _aws_events(data: bytes) -> Iterator[Any]:
    """Yield the payloads of Amazon's event stream.

    https://docs.aws.amazon.com/transcribe/latest/dg/streaming-setting-up.html describes a message.
    """
    at = 0
    while at + _PRELUDE <= len(data):
        length = int.from_bytes(data[at : at + 4])
        headers = int.from_bytes(data[at + 4 : at + 8])
        if length < _PRELUDE + _CHECKSUM or at + length > len(data):
            return
        for value in _json_values(data[at + _PRELUDE + headers : at + length - _CHECKSUM].decode(errors="replace")):
            wrapped = value.get("bytes") if isinstance(value, dict) else None
            if isinstance(wrapped, str):
                yield from _json_values(base64.b64decode(wrapped).decode(errors="replace"))
            else:
                yield value
        at += length


def _text_in(value: Any) -> str:
    """Return the text in one JSON value, whether it is a whole answer or an event of a stream."""
    if not isinstance(value, dict):
        return ""
    try:
        for read in (_of_openai, _of_responses, _of_anthropic, _of_google, _of_cohere, _of_ollama, _of_bedrock):
            text = read(value)
            if text is not None:
                return text
    except (AttributeError, KeyError, IndexError, TypeError):
        pass  # an unknown format
    return ""


def _join(parts: Iterable[Any]) -> str:
    """Return the text of content that is a string, or a list of parts of which some are text."""
    if isinstance(parts, str):
        return parts
    texts = (part.get("text") for part in parts if isinstance(part, dict) and not part.get("thought"))
    return "".join(text for text in texts if isinstance(text, str))


def _of_openai(value: dict[str, Any]) -> str | None:
    choices = value.get("choices")
    if not choices:
        return None if choices is None else ""
    choice = choices[0]  # of several, one is enough to show
    message = choice.get("delta") or choice.get("message") or choice
    return _join(message.get("content") or message.get("text") or "")


def _of_responses(value: dict[str, Any]) -> str | None:
    kind = str(value.get("type", ""))
    if kind.startswith("response."):
        return str(value["delta"]) if kind == "response.output_text.delta" else ""
    if value.get("object") != "response":
        return None
    return "".join(_join(item.get("content") or ()) for item in value["output"] if item.get("type") == "message")


def _of_anthropic(value: dict[str, Any]) -> str | None:
    match value.get("type"):
        case "content_block_delta":
            return str(value["delta"].get("text", ""))
        case "message":
            return _join(part for part in value["content"] if part.get("type") == "text")
        case "message_start" | "message_delta" | "message_stop" | "content_block_start" | "content_block_stop" | "ping":
            return ""
        case _:
            return None


def _of_google(value: dict[str, Any]) -> str | None:
    candidates = value.get("candidates")
    return _join(candidates[0]["content"].get("parts") or ()) if candidates else None


def _of_cohere(value: dict[str, Any]) -> str | None:
    match value.get("type") or value.get("event_type"):
        case "content-delta":
            return str(value["delta"]["message"]["content"].get("text", ""))
        case "text-generation":
            return str(value["text"])
        case None:
            return str(value["text"]) if "generation_id" in value else None
        case _:
            return ""


def _of_ollama(value: dict[str, Any]) -> str | None:
    message = value.get("message")
    if isinstance(message, dict):
        return _join(message.get("content") or "")
    return value["response"] if isinstance(value.get("response"), str) else None


def _of_bedrock(value: dict[str, Any]) -> str | None:
    if "contentBlockIndex" in value:
        return str(value.get("delta", {}).get("text", ""))
    output = value.get("output")
    return _join(output["message"]["content"]) if isinstance(output, dict) else None

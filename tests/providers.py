"""A server that speaks like the providers of models, whole answers and streams, and whose words wait to be released."""

from __future__ import annotations

import binascii
import contextlib
import json
import select
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = [f"word{number} " for number in range(12)]
TEXT = "".join(WORDS)


class Providers:
    """Answers every request with TEXT; a stream stops after ``shown`` words until ``released`` is set."""

    shown = 3

    def __enter__(self):
        self.released = threading.Event()
        self.begun: list[str] = []
        self.streaming = threading.Semaphore(0)
        self.closed = threading.Semaphore(0)
        self.connections: list[socket.socket] = []
        handler = type("Handler", (_Handler,), {"providers": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error):
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        for connection in self.connections:  # clients keep theirs open
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    providers: Providers

    def setup(self):
        super().setup()
        self.providers.connections.append(self.connection)

    def log_message(self, *_args):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        path = self.path.partition("?")[0]
        self.providers.begun.append(path)
        is_stream = bool(body.get("stream", path == "/api/chat")) or "stream" in path.lower()
        content_type, chunks = _answer(path, is_stream=is_stream)
        try:
            self._answer(content_type, chunks, is_stream=is_stream)
        except OSError:
            self.close_connection = True
            self.providers.closed.release()

    def _answer(self, content_type: str, chunks: Iterator[bytes], *, is_stream: bool):
        if not is_stream:
            self.providers.streaming.release()
            self._wait()
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, chunk in enumerate(chunks):
            if is_stream and number == self.providers.shown:
                self.providers.streaming.release()
                self._wait()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def _wait(self):
        """Wait until the rest is released, or the client closes the connection."""
        while not self.providers.released.wait(0.005):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError


def answer_to(path: str, *, is_stream: bool) -> Iterator[bytes]:
    """Return the pieces of an answer."""
    return _answer(path, is_stream=is_stream)[1]


def _answer(path: str, *, is_stream: bool) -> tuple[str, Iterator[bytes]]:
    if path.startswith("/model/"):
        if not is_stream:
            return _whole(
                {
                    "output": {"message": {"role": "assistant", "content": [{"text": TEXT}]}},
                    "stopReason": "end_turn",
                    "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
                    "metrics": {"latencyMs": 1},
                }
            )
        return "application/vnd.amazon.eventstream", map(_aws_event, _bedrock())
    if not is_stream:
        return _whole(_plain(path))
    if path == "/api/chat":
        return "application/x-ndjson", (json.dumps(event).encode() + b"\n" for event in _ollama())
    return "text/event-stream", map(_sse, _events(path))


def _whole(answer: dict) -> tuple[str, Iterator[bytes]]:
    return "application/json", iter([json.dumps(answer).encode()])


def _sse(event: dict | str) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def _plain(path: str) -> dict:
    if path.endswith("/messages"):
        content = [{"type": "text", "text": TEXT}]
        return {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": content, **_ANTHROPIC_END}
    if path.endswith("generateContent"):
        return {"candidates": [{"content": {"role": "model", "parts": [{"text": TEXT}]}, "finishReason": "STOP"}]}
    if path == "/v2/chat":
        message = {"role": "assistant", "content": [{"type": "text", "text": TEXT}]}
        return {"id": "1", "finish_reason": "COMPLETE", "message": message}
    if path.endswith("/responses"):
        item = {"type": "message", "id": "2", "role": "assistant", "status": "completed"}
        item["content"] = [{"type": "output_text", "text": TEXT, "annotations": []}]
        return {"id": "1", "object": "response", "created_at": 1, "model": "m", "output": [item]}
    if path == "/api/chat":
        return next(_ollama(text=TEXT, done=True))
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
        "usage": _USAGE,
    }


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_ANTHROPIC_END = {"stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}


def _events(path: str) -> Iterator[dict | str]:
    if path.endswith("/messages"):
        start = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": [], **_ANTHROPIC_END}
        yield {"type": "message_start", "message": start}
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for word in WORDS:
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        yield {"type": "content_block_stop", "index": 0}
        yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
        yield {"type": "message_stop"}
    elif path.endswith("GenerateContent"):
        for word in WORDS:
            yield {"candidates": [{"content": {"role": "model", "parts": [{"text": word}]}}]}
    elif path == "/v2/chat":
        yield {"type": "message-start", "id": "1", "delta": {"message": {"role": "assistant"}}}
        for word in WORDS:
            yield {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": word}}}}
        yield {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}}
    elif path.endswith("/responses"):
        for number, word in enumerate(WORDS):
            place = {"item_id": "2", "output_index": 0, "content_index": 0, "sequence_number": number, "logprobs": []}
            yield {"type": "response.output_text.delta", "delta": word, **place}
    else:
        head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        for word in WORDS:
            yield {**head, "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}], "usage": _USAGE}
        yield "[DONE]"


def _ollama(text: str | None = None, *, done: bool = False) -> Iterator[dict]:
    for word in WORDS if text is None else [text]:
        message = {"role": "assistant", "content": word}
        yield {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": done}


def _bedrock() -> Iterator[tuple[str, dict]]:
    yield "messageStart", {"role": "assistant"}
    for word in WORDS:
        yield "contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": word}}
    yield "messageStop", {"stopReason": "end_turn"}


def _aws_event(event: tuple[str, dict]) -> bytes:
    name, value = event
    headers = b""
    for key, text in ((":event-type", name), (":content-type", "application/json"), (":message-type", "event")):
        headers += struct.pack(">B", len(key)) + key.encode() + struct.pack(">BH", 7, len(text)) + text.encode()
    payload = json.dumps(value).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", binascii.crc32(message))

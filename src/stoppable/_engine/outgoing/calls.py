"""The requests of a run's code: which are model calls, the boundary of each, the body of its answer.

A boundary is entered before its request is sent, and left when the body was read or closed. Connections that code makes
outside every boundary are only named: no stop sees what goes over them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import functools
import itertools
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType, TracebackType
from typing import Any, NamedTuple

from stoppable._core import clock, context, participants
from stoppable._core.boundary import innermost
from stoppable._core.context import RunContext
from stoppable._core.hooks import Callback, Hook, Moment
from stoppable._core.node import RunNode
from stoppable._core.participants import Role
from stoppable._engine import control, source_lines, streams, tasks
from stoppable._engine.instrumentation import patches, scopes, user_code
from stoppable._engine.outgoing.answers import ModelAnswer, note_answer
from stoppable._engine.streams import AsyncChunks, BlockingChunks, GuardedEntry
from stoppable.errors import AgentStopped

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


def request_label(method: str, host: str, path: str, body: object = None) -> Label:
    """Return the label of a request; never with its query, which may contain a key."""
    label = _url_label(method.upper(), host, path.partition("?")[0], os.environ.get(MODEL_URLS, ""))
    return Label("llm", _clean(label.name + _model_in(body))) if label.kind == "llm" else label


@functools.lru_cache(maxsize=256)  # an agent sends most of its requests to few places
def _url_label(method: str, host: str, path: str, listed: str) -> Label:
    if method == "POST" and (_MODEL_PATHS.search(path) is not None or _is_listed(f"{host}{path}", listed)):
        return Label("llm", f"{host}{path}")
    return Label("http", _clean(f"{method} {host}{_SECRET.sub('…', path)}"))


def grpc_label(target: str, method: str) -> Label:
    """Return the label of a gRPC call; ``method`` is ``/package.Service/Method``."""
    service, _, name = method.lstrip("/").rpartition("/")
    is_model = ("generativelanguage" in service or "aiplatform" in service or "llm" in service.lower()) and bool(
        _GRPC_MODEL_METHODS.search(name)
    )
    is_model = is_model or _is_listed(f"{target}{method}")
    return Label("llm" if is_model else "http", _clean(f"{target}{method}".lstrip("/")))


def websocket_label(host: str, path: str) -> Label:
    """Return the label of what is sent to or received from a websocket."""
    is_model = path.partition("?")[0].endswith("/realtime") or _is_listed(f"{host}{path}")
    return Label("llm" if is_model else "http", _clean(f"WS {host}{_SECRET.sub('…', path.partition('?')[0])}"))


def _is_listed(url: str, listed: str | None = None) -> bool:
    patterns = (os.environ.get(MODEL_URLS, "") if listed is None else listed).split(",")
    stripped = (pattern.strip().removeprefix("https://").removeprefix("http://") for pattern in patterns)
    return any(fnmatch.fnmatchcase(url, pattern) for pattern in stripped if pattern)


def _model_in(body: object) -> str:
    """Return the name of the model that a JSON body asks for, after a space; empty if there is none."""
    if isinstance(body, str):
        body = body[:_MOST_OF_BODY].encode()
    if not isinstance(body, bytes | bytearray):
        return ""
    match = _MODEL.search(body, 0, _MOST_OF_BODY)
    return "" if match is None else f" {match[1].decode(errors='replace')}"


def _clean(name: str) -> str:
    if len(name) <= _LONGEST and name.isprintable():
        return name
    return "".join(char if char.isprintable() else "?" for char in name[:_LONGEST])


_get = context.current.get
_AGAIN_SECONDS = 0.05
_COVER_REQUESTS = ("llm", "remote")
"""The kinds of boundaries whose requests are a part of their own effect."""

_spared_hosts: frozenset[str] = frozenset()


def spare(hosts: Iterable[str]) -> None:
    """Make no boundaries of requests to these hosts."""
    global _spared_hosts
    _spared_hosts = frozenset(hosts)


class OutgoingCall(GuardedEntry):
    """The boundary of a request."""

    __slots__ = ("answer", "is_answered", "scope")

    answer: ModelAnswer | None
    """What a model answers, if the request is a model call."""
    is_answered: bool
    """Whether only its body is still to be read."""
    scope: RunContext

    @property
    def is_idle(self) -> bool:
        """Whether it is a body that nobody reads now; without an answer it is in flight, also if nobody waits yet."""
        return self.is_answered and self.holder is None

    def cut_off(self) -> None:
        """Raise AgentStopped in place of the error with which INTERRUPT ended the request."""
        try:
            self.scope.raise_stopped()
        except AgentStopped as stopped:
            stopped.by_force = True
            raise


def begin(host_and_label: Callable[..., tuple[str, Label]], *args: Any) -> OutgoingCall | None:
    """Enter the boundary of a request; raises AgentStopped if the run was stopped.

    None outside runs, for hosts that are spared, and inside another boundary that the request is a part of: that of a
    guarded client or an adapter, or of a client that is built on this one.
    """
    if _get().run_here() is None or not patches.is_on():
        return None
    scope = scopes.current()
    run = None if scope is None else scope.run_here()
    if scope is None or run is None or _is_covered(run):
        return None
    try:
        host, label = host_and_label(*args)
    except Exception:
        host, label = "", Label("http", "request")  # an argument that the client itself will complain about
    if host in _spared_hosts:
        return None
    call = OutgoingCall(*label)
    call.scope = scope
    call.answer = None
    call.is_answered = False
    reset = context.current.set(scope)  # clean-up may send requests after the stop
    try:
        call.__enter__()
    finally:
        context.current.reset(reset)
    if label.kind == "llm":
        call.answer = note_answer(run)
    return call


def _is_covered(run: RunNode) -> bool:
    if not _has_boundary(run):
        return False  # the usual case
    boundary = innermost(run)
    if boundary is not None and (boundary.kind in _COVER_REQUESTS or isinstance(boundary, OutgoingCall)):
        return True
    participant = participants.engine.join(run)
    boundary = None if participant is None else participant.inside
    return boundary is not None and boundary.kind in _COVER_REQUESTS


async def begin_async(host_and_label: Callable[..., tuple[str, Label]], *args: Any) -> OutgoingCall | None:
    """Enter the boundary of a request that a task sends."""
    try:
        return begin(host_and_label, *args)
    except AgentStopped:
        await participants.engine.hold_back()
        raise


class blocking:  # noqa: N801 - reads as a statement
    """The time in which a thread waits for the answer to a request, which INTERRUPT ends with ``cut``.

    A thread in ``recv()`` cannot be reached in any other way than through its connection. Without ``cut``, the
    connection is looked for among the variables of the functions that the thread executes.
    """

    __slots__ = ("_call", "_cut", "_frame", "_hook", "_is_over", "_thread")

    def __init__(self, call: OutgoingCall, cut: Callable[[], object] | None = None) -> None:
        self._call = call
        self._cut = self._cut_unknown if cut is None else cut

    def __enter__(self) -> None:
        self._is_over = False
        self._thread = threading.get_ident()
        self._frame: FrameType | None = sys._getframe(1)
        self._hook: Hook | None = None
        call = self._call
        if call._run is not None:
            call.holder = participants.engine.join(call._run)
        if isinstance(call.scope, RunNode):  # not in clean-up, which lasts until KILL
            self._hook = Callback(call.scope, Moment.INTERRUPT, self._interrupt)
            call.scope.add_hook(self._hook)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over = True
        self._frame = None
        if self._hook is not None:
            self._hook.remove()
        call = self._call
        if error is None:
            call.holder = None  # until it waits again, or reads the body
        else:
            call.leave(error)
            if call.is_cut and isinstance(error, Exception):
                call.cut_off()

    def _interrupt(self) -> None:
        """End the wait, again and again until it is over: there may be no connection yet, or one that only begins."""
        run = self._call._run
        if self._is_over or run is None or run.outcome is not None:
            return
        self._call.is_cut = True
        self._cut()
        control.get().call_at(clock.now() + _AGAIN_SECONDS, self._interrupt)

    def _cut_unknown(self) -> bool:
        frame = self._frame
        return frame is not None and shut_down(_socket_of(self._thread, frame))


def shut_down(connection: Any) -> bool:
    """Shut a connection down, which wakes the thread that reads from it; False if there is none."""
    if connection is None:
        return False
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)
    return True


def _socket_of(thread: int, outermost: FrameType) -> socket.socket | None:
    """Return the socket that the functions use which a thread executes inside a frame.

    None if the thread has left that frame meanwhile: any socket would be that of other code.
    """
    connection: socket.socket | None = None
    frame = source_lines.stacks_of_threads().get(thread)
    while frame is not None and frame is not outermost:
        if "http2" in frame.f_code.co_filename:
            return None  # other requests share the connection
        if connection is None:
            sockets = map(_as_socket, list(frame.f_locals.values()))
            connection = next((each for each in sockets if each is not None), None)
        frame = frame.f_back
    return None if frame is None else connection


def _as_socket(value: object) -> socket.socket | None:
    """Return a value that is a socket, or the socket that it is a wrapper of."""
    if isinstance(value, socket.socket):
        return value
    try:
        inner = getattr(value, "_sock", None)
    except Exception:
        return None  # an object of the client whose attributes cannot be read now
    return inner if isinstance(inner, socket.socket) else None


_STREAMS = ("event-stream", "ndjson", "jsonl", "stream+json", "json-seq", "eventstream")


def is_stream(content_type: str | None) -> bool:
    """Return whether a body of this type arrives piece by piece, and its reader uses each piece at once.

    Any other body is read to its end after a graceful stop: it is one answer.
    """
    return content_type is not None and any(name in content_type for name in _STREAMS)


class BlockingBody(BlockingChunks[Any]):
    """A body that blocking code reads."""

    __slots__ = ("_call", "_cut_off")

    def __init__(self, source: Any, call: OutgoingCall, *, finish: bool = False, cut: Callable[[], bool]) -> None:
        super().__init__(source, finish=finish, entry=call)
        call.is_answered = True
        self._call = call
        self._cut_off = cut

    def __next__(self) -> bytes:
        chunk: bytes = super().__next__()
        if self._call.answer is not None:
            self._call.answer.add(chunk)
        return chunk

    def read(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Read with a method of the source, as a part of the run."""
        return self._step(lambda: operation(*args))

    def end(self) -> None:
        """Note that the body was read or closed."""
        if not self._over:
            self._over = True
            self._leave()

    def _interrupt(self) -> None:
        if self._over or self._is_shielded:
            return
        self._cut = True
        with contextlib.suppress(Exception):
            if not self._cut_off():
                streams.close_all((self._source,))


class AsyncBody(AsyncChunks[Any]):
    """A body that a task reads."""

    __slots__ = ("_call", "_cut_off")

    def __init__(
        self, source: Any, call: OutgoingCall, *, finish: bool = False, cut: Callable[[], object] | None = None
    ) -> None:
        super().__init__(source, finish=finish, entry=call)
        call.is_answered = True
        self._call = call
        self._cut_off = cut

    # A second cancel, such as that of KILL, may hit the client while it closes, and the server would go on.

    def _read_failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self._cut_off is not None:
            self._cut_off()
        super()._read_failed(error)

    async def _shut_async(self) -> None:
        try:
            await super()._shut_async()
        except asyncio.CancelledError:
            if self._cut_off is not None:
                self._cut_off()
            raise

    @property
    def is_over(self) -> bool:
        """Whether it has arrived as a whole, or was closed."""
        return self._over and not self._cut

    async def __anext__(self) -> bytes:
        chunk: bytes = await super().__anext__()
        if self._call.answer is not None:
            self._call.answer.add(chunk)
        return chunk

    async def read(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Read with a method of the source, as a part of the run."""
        return await self._step_async(lambda: operation(*args, **kwargs))

    def end(self) -> None:
        """Note that the body was read or closed."""
        if not self._over:
            self._over = True
            self._leave()


_INTERNET = (socket.AF_INET, socket.AF_INET6)
_CLIENTS = frozenset({"aiohttp", "grpc", "http", "httpcore", "httpcore2", "httpx", "httpx2", "urllib3", "websockets"})
"""The packages whose requests are boundaries themselves, unless their hosts are spared."""
_STEP = asyncio.Handle._run.__code__
"""Where an event loop calls a step of a task: the code around it is not that of the task."""


def install_sockets(module: ModuleType) -> None:
    """Note the connections of sockets."""
    for name in ("connect", "connect_ex"):
        patches.put(module.socket, name, _connect_of)


def _connect_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def connect(self: socket.socket, address: Any) -> Any:
        if _get().run_here() is not None and patches.is_on() and self.family in _INTERNET:
            _note_connection(address)
        return original(self, address)

    return connect


def _note_connection(address: Any) -> None:
    scope = scopes.current()
    run = None if scope is None else scope.run_here()
    if run is None:
        return
    stack = source_lines.frames_here()
    frames = list(itertools.takewhile(lambda frame: frame.f_code is not _STEP, stack))
    if any(user_code.is_users_file(frame.f_code.co_filename) for frame in frames):
        is_inside = any(innermost(each) is not None for each in run.lineage())
    else:  # a task or a thread of a library, which a look at its boundary would make a participant
        starter = tasks.starter()
        frames += [] if starter is None else tasks.suspended_in(starter.task.get_coro())
        is_inside = any(_has_boundary(each) for each in run.lineage())
    if is_inside or any(str(frame.f_globals.get("__name__")).partition(".")[0] in _CLIENTS for frame in frames):
        return
    host, port, *_ = address if isinstance(address, tuple) else (address, "")
    run.note_unguarded(f"{host}:{port} from {source_lines.place(frames)}")


def _has_boundary(run: RunNode) -> bool:
    return any(member.role is Role.BOUNDARY for member in list(run.members or ()))

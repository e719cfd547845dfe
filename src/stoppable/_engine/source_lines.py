"""Describes where code is, so that users find the line in their own code."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType

_FRAMES_TOLD = 8
_FRAMES_OF_TRACE = 100  # a longer one is a recursion, and its end is enough
_FRAMES_OF_RECURSION = 20
_OUR_CODE = str(Path(__file__).parent.parent) + "/_"
_THREAD_STARTS = {(threading.__file__, name) for name in ("_bootstrap", "_bootstrap_inner", "run")}


def place(frames: list[FrameType]) -> str:
    """Return the user's line, and the library function it called: ``agent.py:9 in ask, inside requests.post``."""
    if not frames:
        return ""
    libraries = _libraries()
    own = next((i for i, frame in enumerate(frames) if not frame.f_code.co_filename.startswith(libraries)), 0)
    frame = frames[own]
    where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
    if own == 0:
        return where
    library_frame = frames[own - 1]
    module = str(library_frame.f_globals.get("__name__", "")).partition(".")[0]
    return f"{where}, inside {module}.{library_frame.f_code.co_name}"


@cache
def _libraries() -> tuple[str, ...]:
    import sysconfig  # noqa: PLC0415 - slow to import, and only needed for a lost run

    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def lines(frames: list[FrameType]) -> tuple[str, ...]:
    """Return the innermost frames as text, innermost first."""
    innermost = frames[:_FRAMES_TOLD]
    return tuple(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" for frame in innermost)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error as text, with its causes and groups, without our frames around the user's code.

    For a recursion it returns only the end: every level may be a run, and formatting a thousand frames takes a tenth
    of a second.
    """
    whole = traceback.TracebackException.from_exception(error, lookup_lines=False)
    unvisited: list[traceback.TracebackException | None] = [whole]
    while unvisited:
        part = unvisited.pop()
        if part is not None:
            part.stack = traceback.StackSummary.from_list(_of_the_author(part.stack))
            unvisited += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    return "".join(whole.format())


def _of_the_author(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return frames without our own, except the last ones: an error of stoppable keeps the line that raised it."""
    is_ours = [_is_our_code(frame.filename, frame.name) for frame in frames]
    own_end = len(frames) - next((count for count, ours in enumerate(reversed(is_ours)) if not ours), 0)
    users_frames = [frame for number, frame in enumerate(frames) if number >= own_end or not is_ours[number]]
    return users_frames if len(users_frames) <= _FRAMES_OF_TRACE else users_frames[-_FRAMES_OF_RECURSION:]


def describe_thread(thread: threading.Thread) -> str:
    """Return the user's own line, then the thread's name."""
    where = place(frames_of_thread(thread))
    return f"{where} (thread {thread.name})" if where else f"thread {thread.name}"


_collection_lock = threading.RLock()  # a signal handler may look at threads, too


def _renew_lock() -> None:
    global _collection_lock
    _collection_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # another thread may have had it


def stacks_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the identifier of the thread.

    Python 3.11 holds the lock of its list of threads meanwhile. If a garbage collection begins then and destroys an
    object whose code needs that lock, all threads wait for ever (python/cpython#106883): so none may begin.
    """
    with _collection_lock:
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if is_collecting:
                gc.enable()


def frames_here() -> list[FrameType]:
    """Return the frames of the calling thread, innermost first, without our own and those that start the thread."""
    return [frame for frame in _outwards(sys._getframe(1)) if not _is_ours(frame)]


def frames_of_thread(thread: threading.Thread, stacks: Mapping[int, FrameType] | None = None) -> list[FrameType]:
    """Return the frames of a thread, innermost first, without our own and those that start the thread.

    Who looks at many threads passes the ``stacks`` of all, so that they are collected once.
    """
    innermost = (stacks_of_threads() if stacks is None else stacks).get(thread.ident or 0)
    return [frame for frame in _outwards(innermost) if not _is_ours(frame)]


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return _is_our_code(frame.f_code.co_filename, frame.f_code.co_name)


def _is_our_code(filename: str, name: str) -> bool:
    return filename.startswith(_OUR_CODE) or (filename, name) in _THREAD_STARTS

"""Where code stands, said so that its author finds the line."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

_FRAMES_TOLD = 8
_FRAMES_OF_TRACE = 100  # one that is longer is a recursion's: of that the end is told
_FRAMES_OF_RECURSION = 20
_OUR_CODE = str(Path(__file__).parent.parent) + "/_"
_THREAD_STARTS = {(threading.__file__, name) for name in ("_bootstrap", "_bootstrap_inner", "run")}


def place(frames: list[FrameType]) -> str:
    """Return the author's own line, and what it called: ``agent.py:9 in ask, inside requests.post``."""
    if not frames:
        return ""
    libraries = _libraries()
    own = next((i for i, frame in enumerate(frames) if not frame.f_code.co_filename.startswith(libraries)), 0)
    frame = frames[own]
    where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
    if own == 0:
        return where
    called = frames[own - 1]
    module = str(called.f_globals.get("__name__", "")).partition(".")[0]
    return f"{where}, inside {module}.{called.f_code.co_name}"


@cache
def _libraries() -> tuple[str, ...]:
    import sysconfig  # noqa: PLC0415 - it takes time, and only a run that is lost needs it

    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def lines(frames: list[FrameType]) -> tuple[str, ...]:
    """Return the stack, innermost first."""
    told = frames[:_FRAMES_TOLD]
    return tuple(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" for frame in told)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error as text, from the author's code on; of a recursion its end.

    A recursion may have made a run of each of its levels, and to format a thousand frames takes a tenth of a second.
    """
    frames = []
    frame = error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    frames = frames[next((i for i, one in enumerate(frames) if not _is_ours(one.tb_frame)), 0) :]
    if len(frames) > _FRAMES_OF_TRACE:
        frames = frames[-_FRAMES_OF_RECURSION:]
    told = frames[0] if frames else None
    return "".join(traceback.format_exception(type(error), error, told))


def describe_thread(thread: threading.Thread) -> str:
    """Return the author's own line, then the thread's name."""
    where = place(frames_of_thread(thread))
    return f"{where} (thread {thread.name})" if where else f"thread {thread.name}"


def frames_of_thread(thread: threading.Thread) -> list[FrameType]:
    """Return the frames of a thread, innermost first, without our own and those that start it."""
    return [frame for frame in _outwards(sys._current_frames().get(thread.ident or 0)) if not _is_ours(frame)]


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_filename.startswith(_OUR_CODE) or (code.co_filename, code.co_name) in _THREAD_STARTS

"""Tells in which files of a folder functions are called, on every thread that is started from now on."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType


def follow(folder: str, note: Callable[[str], object]) -> None:
    """Call ``note`` with the path below the folder; what a module does while it is imported does not count."""

    def profile(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001 - the name of the protocol
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(folder) and not _is_import(frame):
            note(name[len(folder) :])

    sys.setprofile(profile)
    threading.setprofile(profile)


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_globals.get("__name__") != "__main__":
            return True  # the body of a module or a class
        frame = frame.f_back
    return False

"""Reads ``/proc``, and mostly without handing the interpreter to another thread.

Python's own functions release the interpreter at each system call. Where other threads compute, a thread gets it back
only after 5 ms or more each time, and a search through a hundred processes, with hundreds of calls, would take seconds.
The files that a search reads of every process are therefore read without a release; these reads never block.
"""

from __future__ import annotations

import ctypes
import os

PROC = "/proc"
_CHUNK = 1 << 16
_STAT_BYTES = 2048
_NAME_OFFSET = 19  # of d_name in struct dirent64: after inode, offset, length and type


def _load() -> ctypes.PyDLL:
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.opendir.argtypes, libc.opendir.restype = [ctypes.c_char_p], ctypes.c_void_p
    libc.closedir.argtypes = [ctypes.c_void_p]
    libc.open.argtypes = [ctypes.c_char_p, ctypes.c_int]
    libc.read.argtypes, libc.read.restype = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t], ctypes.c_ssize_t
    return libc


_libc = _load()
_read_entry = getattr(_libc, "readdir64", _libc.readdir)
_read_entry.argtypes, _read_entry.restype = [ctypes.c_void_p], ctypes.c_void_p


def listed() -> list[int]:
    """Return the pids of all processes, in the order in which the kernel looks at them: the lowest first."""
    directory = _libc.opendir(PROC.encode())
    if not directory:
        return []
    pids = []
    try:
        while entry := _read_entry(directory):
            name = ctypes.string_at(entry + _NAME_OFFSET)
            if name.isdigit():
                pids.append(int(name))
    finally:
        _libc.closedir(directory)
    return pids


def last_pid() -> int:
    """Return the newest pid that the kernel gave; it grows with every process, until the numbers start again."""
    try:
        return int(_short(f"{PROC}/loadavg").rpartition(b" ")[2])
    except OSError:
        return 0


def stat(pid: int) -> bytes:
    """Return the line with the state of a process; raise OSError if it is gone."""
    return _short(f"{PROC}/{pid}/stat")


def _short(path: str) -> bytes:
    handle = _libc.open(path.encode(), os.O_RDONLY | os.O_CLOEXEC)
    if handle < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    try:
        buffer = ctypes.create_string_buffer(_STAT_BYTES)
        size = _libc.read(handle, buffer, _STAT_BYTES)
        if size < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return ctypes.string_at(buffer, size)
    finally:
        _libc.close(handle)


def environ(pid: int) -> bytes:
    """Return the environment of a process; this may block, and releases the interpreter twice."""
    handle = os.open(f"{PROC}/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [os.read(handle, _CHUNK)]
        while len(pieces[-1]) == _CHUNK:  # only the end is shorter
            pieces.append(os.read(handle, _CHUNK))
    finally:
        _libc.close(handle)
    return b"".join(pieces)


def maps(pid: int) -> bytes:
    """Return the memory mappings of a process; this may block, and releases the interpreter."""
    with open(f"{PROC}/{pid}/maps", "rb") as file:  # noqa: PTH123 - a Path is slower
        return file.read()

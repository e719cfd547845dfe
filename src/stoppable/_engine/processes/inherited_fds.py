"""Descriptors that every process which a run starts is given.

A store proves by a lock that a worker is dead; a process that has the lock's descriptor keeps it, so that the proof is
one for whatever the worker started, too.
"""

from __future__ import annotations

from collections.abc import Callable

_sources: list[Callable[[], tuple[int, ...]]] = []


def add(source: Callable[[], tuple[int, ...]]) -> None:
    """Give new processes what a function says, until it is removed."""
    _sources.append(source)


def remove(source: Callable[[], tuple[int, ...]]) -> None:
    """Stop giving them that."""
    if source in _sources:
        _sources.remove(source)


def descriptors() -> tuple[int, ...]:
    """Return what a new process is to be given (``pass_fds``)."""
    return tuple(descriptor for source in list(_sources) for descriptor in source())

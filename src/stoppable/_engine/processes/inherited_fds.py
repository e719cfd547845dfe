"""File descriptors that every process of a run inherits.

A store considers a worker dead once the worker's lock is free. Processes of the worker inherit the lock's descriptor,
so a free lock proves that they are dead too.
"""

from __future__ import annotations

from collections.abc import Callable

_sources: list[Callable[[], tuple[int, ...]]] = []


def add(source: Callable[[], tuple[int, ...]]) -> None:
    """Pass the descriptors that a function returns to new processes, until it is removed."""
    _sources.append(source)


def remove(source: Callable[[], tuple[int, ...]]) -> None:
    """Stop passing these descriptors."""
    if source in _sources:
        _sources.remove(source)


def descriptors() -> tuple[int, ...]:
    """Return the descriptors for a new process (``pass_fds``)."""
    return tuple(descriptor for source in list(_sources) for descriptor in source())

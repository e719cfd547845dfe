"""The answer of a store that may still be on its way: awaited in any event loop, or waited for on a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, TypeVar

from stoppable.errors import StoreError

T = TypeVar("T")

_logger = logging.getLogger("stoppable")
_lock = threading.Lock()  # one for all: it is held for two lines


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


class Reply(Generic[T]):
    """What one call of the store answers. Whoever stops waiting for it loses nothing: the call is done all the same."""

    __slots__ = ("_error", "_is_settled", "_value", "_waiters")

    _value: T

    def __init__(self) -> None:
        self._is_settled = False
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None] | Callable[[], object]] | None = None

    @classmethod
    def of(cls, call: Callable[[], T]) -> Reply[T]:
        """Return the reply of a call that is made now."""
        reply: Reply[T] = cls()
        try:
            reply._value = call()
        except Exception as error:
            reply._error = error
        reply._is_settled = True
        return reply

    @classmethod
    def failed(cls, error: BaseException) -> Reply[T]:
        """Return the reply of a call that could not be made."""
        reply: Reply[T] = cls()
        reply._error, reply._is_settled = error, True
        return reply

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_settled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._add(future):
                yield from future
        return self._get()

    def result(self, timeout: float | None = None) -> T:
        """Wait for it on a thread; a StoreError if it does not come in time."""
        if not self._is_settled:
            event = threading.Event()
            if self._add(event.set) and not event.wait(timeout):
                raise StoreError(f"the store did not answer within {timeout} seconds")
        return self._get()

    def then(self, call: Callable[[Reply[T]], object]) -> None:
        """Call one of our own functions once it is there, on whatever thread; at once if it is there now."""
        if not self._add(lambda: call(self)):
            call(self)

    def _add(self, waiter: asyncio.Future[None] | Callable[[], object]) -> bool:
        with _lock:
            if self._is_settled:
                return False
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            return True

    def _get(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value


Settled = tuple[Reply[Any], Any, BaseException | None]


def settle(answers: Iterable[Settled]) -> None:
    """Give many replies their value or error, and wake each event loop once for all of them."""
    waiters: list[asyncio.Future[None] | Callable[[], object]] = []
    with _lock:
        for reply, value, error in answers:
            reply._value, reply._error, reply._is_settled = value, error, True
            if reply._waiters is not None:
                waiters += reply._waiters
                reply._waiters = None
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for waiter in waiters:
        if isinstance(waiter, asyncio.Future):
            loops.setdefault(waiter.get_loop(), []).append(waiter)
        else:
            _call(waiter)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
            loop.call_soon_threadsafe(_resolve, futures)


def _call(waiter: Callable[[], object]) -> None:
    try:
        waiter()
    except Exception:  # the others wait for their answers too
        _logger.exception("a callback that waited for the store failed")


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)

"""StoreFuture: the result of a call to a store, which may not have arrived yet.

It can be awaited in any event loop or waited for on a thread, so a store needs to know neither.
"""

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
_lock = threading.Lock()  # one for all futures: it is held only for a few lines


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


class StoreFuture(Generic[T]):
    """The result of one call. The call is made even if its caller stops waiting."""

    __slots__ = ("_error", "_is_settled", "_value", "_waiters")

    _value: T

    def __init__(self) -> None:
        self._is_settled = False
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None] | Callable[[], object]] | None = None

    @classmethod
    def of(cls, call: Callable[[], T]) -> StoreFuture[T]:
        """Make a call now, and return a future with its result or error."""
        future: StoreFuture[T] = cls()
        try:
            future._value = call()
        except Exception as error:
            future._error = error
        future._is_settled = True
        return future

    @classmethod
    def failed(cls, error: BaseException) -> StoreFuture[T]:
        """Return a future that raises an error."""
        future: StoreFuture[T] = cls()
        future._error, future._is_settled = error, True
        return future

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_settled:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._add(waiter):
                yield from waiter
        return self._get()

    def result(self, timeout: float | None = None) -> T:
        """Wait on this thread for the result; raises StoreError after ``timeout`` seconds."""
        if not self._is_settled:
            event = threading.Event()
            if self._add(event.set) and not event.wait(timeout):
                raise StoreError(f"the store did not answer within {timeout} seconds")
        return self._get()

    def then(self, call: Callable[[StoreFuture[T]], object]) -> None:
        """Call an internal function when the result is there, on any thread; at once if it is there already."""
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


Settled = tuple[StoreFuture[Any], Any, BaseException | None]


def settle(answers: Iterable[Settled]) -> None:
    """Give each future its value or error, and wake each event loop once for all of them."""
    waiters: list[asyncio.Future[None] | Callable[[], object]] = []
    with _lock:
        for future, value, error in answers:
            future._value, future._error, future._is_settled = value, error, True
            if future._waiters is not None:
                waiters += future._waiters
                future._waiters = None
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
    except Exception:  # the others must be called too
        _logger.exception("a callback that waited for the store failed")


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)

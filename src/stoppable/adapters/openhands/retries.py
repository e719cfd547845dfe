"""Pauses between the tries of a model call: a stop ends them, and no further try begins."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import stoppable
from stoppable import sync

_run_context: contextvars.ContextVar[contextvars.Context | None] = contextvars.ContextVar(
    "stoppable-openhands-llm", default=None
)
"""The context of the run that makes the model call; the call itself is detached from it."""


@contextlib.contextmanager
def model_call() -> Iterator[None]:
    """Let pauses between the tries in the block end with the current run, although the block detaches itself."""
    token = _run_context.set(contextvars.copy_context())
    try:
        yield
    finally:
        _run_context.reset(token)


def retry_decorator(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``LLM.retry_decorator`` whose pauses a stop ends."""

    @functools.wraps(plain)
    def retry(self: Any, *args: Any, **kwargs: Any) -> Any:
        decorate = plain(self, *args, **kwargs)

        def decorated(function: Callable[..., Any]) -> Any:
            retried = decorate(function)
            retrying = retried.retry  # of tenacity
            is_async = inspect.iscoroutinefunction(function)
            retrying.sleep = (_asleep if is_async else _sleep)(retrying.sleep)
            return retried

        return decorated

    return retry


def _sleep(plain: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        context = _run_context.get()
        if context is None:
            plain(seconds)
        else:
            context.copy().run(sync.sleep, seconds)

    return sleep


def _asleep(plain: Callable[[float], Any]) -> Callable[[float], Any]:
    async def sleep(seconds: float) -> None:
        context = _run_context.get()
        if context is None:
            await plain(seconds)
        else:
            await asyncio.create_task(stoppable.sleep(seconds), context=context.copy())

    return sleep

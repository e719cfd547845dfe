"""Start agents as runs: @agent, spawn, call."""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from types import FunctionType
from typing import Any, Literal, TypeVar, TypeVarTuple, cast, overload

from stoppable._core import context, participants
from stoppable._core.boundary import check
from stoppable._core.context import OUTSIDE
from stoppable._core.node import RunNode
from stoppable._core.values import Policy, Reason, ReasonKind, Status
from stoppable._engine.agent_functions import (
    NO_OPTIONS,
    Kind,
    RunOptions,
    body_of,
    keep_body,
    keep_options,
    kind_of,
    merge_options,
    name_of,
    options_of,
    with_keywords,
)
from stoppable._engine.bodies import Channel, LazyChannel, Returned, Steps, pump, pump_blocking
from stoppable._engine.edge import BlockingEdge, Edge, drive, in_task, require_stack_room
from stoppable._engine.handle import RunHandle
from stoppable._engine.tasks import stop_on_foreign_cancel
from stoppable.errors import AgentStopped, InvalidArgument, RunFailed

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Isolation = Literal["auto", "process"]

_NOT_GIVEN = object()

# Bound once: before 3.12, reading an enum member is slower than a call.
_ASYNC, _FAILED = Kind.ASYNC, Status.FAILED
_GENERATORS = frozenset({Kind.ASYNC_GENERATOR, Kind.BLOCKING_GENERATOR})


@overload
def agent(function: F) -> F: ...
@overload
def agent(
    *, name: str | None = ..., labels: Mapping[str, str] | None = ..., policy: Policy | None = ...
) -> Callable[[F], F]: ...
def agent(
    function: Any = _NOT_GIVEN,
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    policy: Policy | None = None,
) -> Any:
    """Mark a function or generator, sync or async, as an agent: a call of it inside a run is a child run.

    ``@agent(name=…, labels=…, policy=…)`` sets defaults for its runs. Outside a run, a call of it is a plain call. Its
    errors reach the caller unchanged. Leaving a generator early ends its run.
    """
    options = RunOptions(name=name, labels=labels, policy=policy)
    return functools.partial(_wrap_agent, options) if function is _NOT_GIVEN else _wrap_agent(options, function)


def _wrap_agent(options: RunOptions, function: F) -> F:
    match kind_of(function):
        case Kind.ASYNC:
            wrapper = _async_agent(function, options)
        case Kind.ASYNC_GENERATOR:
            wrapper = _async_generator_agent(function, options)
        case Kind.BLOCKING:
            wrapper = _blocking_agent(function, options)
        case Kind.BLOCKING_GENERATOR:
            wrapper = _blocking_generator_agent(function, options)
    functools.update_wrapper(wrapper, function)
    keep_body(wrapper, function)
    keep_options(wrapper, options)
    return cast("F", wrapper)


def _async_agent(function: Callable[..., Any], options: RunOptions) -> Callable[..., Any]:
    async def call_agent(*args: Any, **kwargs: Any) -> Any:
        if context.current_node() is None:
            return await function(*args, **kwargs)
        # drive() inlined: with one frame less, a recursion can go 50 % deeper.
        try:
            edge = Edge(child_run(function, options))
            if edge.open():
                result, error = None, None
                try:
                    result = await function(*args, **kwargs)
                except BaseException as caught:
                    error = caught
                try:
                    if error is not None or not edge.close_at_once(result):
                        await edge.close(result, error)
                finally:
                    error = None  # breaks a reference cycle between the traceback and its frame
            return edge.answer()
        except AgentStopped:
            await participants.engine.hold_back()
            raise

    return call_agent


def _async_generator_agent(function: Callable[..., Any], options: RunOptions) -> Callable[..., Any]:
    async def iterate_agent(*args: Any, **kwargs: Any) -> Any:
        if context.current_node() is None:
            items = function(*args, **kwargs)
            try:
                item = await anext(items)
                while True:  # the counterpart of `yield from`
                    try:
                        sent = yield item
                    except BaseException as error:
                        item = await items.athrow(error)
                    else:
                        item = await items.asend(sent)
            except StopAsyncIteration:
                return
        run = child_run(function, options)
        channel: LazyChannel[Any] = LazyChannel(run)
        handle = RunHandle[Any](run, in_task(run, functools.partial(channel.pump, function), args, kwargs), channel)
        is_cut = False
        try:
            async for item in channel.read():
                yield item
            await _ended_as_called(handle)
        except CancelledError:
            is_cut = stop_on_foreign_cancel(run)
            raise
        finally:
            if not is_cut:  # otherwise it is not waited for (G9)
                run.stop(reason=Reason.of("its consumer left", kind=ReasonKind.DISCONNECT))
                await handle.outcome()

    return iterate_agent


async def _ended_as_called(handle: RunHandle[Any]) -> None:
    """Wait for the end of a called agent; an error of its body propagates unchanged (docs/decisions/0005)."""
    outcome = await handle.outcome()
    if outcome.status is _FAILED and outcome.error is not None:
        raise outcome.error
    await handle.result()


def _blocking_agent(function: Callable[..., Any], options: RunOptions) -> Callable[..., Any]:
    def call_agent(*args: Any, **kwargs: Any) -> Any:
        if context.current_node() is None:
            return function(*args, **kwargs)
        # run_blocking() inlined, for the same reason.
        edge = BlockingEdge(child_run(function, options))
        if edge.open():
            result, error = None, None
            try:
                result = function(*args, **kwargs)
            except BaseException as caught:
                error = caught
            if inspect.iscoroutine(result):
                return Returned(edge, result)
            try:
                edge.close(result, error)
            finally:
                error = None
        return edge.answer()

    return call_agent


def _blocking_generator_agent(function: Callable[..., Any], options: RunOptions) -> Callable[..., Any]:
    def iterate_agent(*args: Any, **kwargs: Any) -> Any:
        items = function(*args, **kwargs)
        if context.current_node() is None:
            return (yield from items)
        return (yield from Steps(child_run(function, options), items))

    return iterate_agent


@overload
async def spawn(
    agent: Callable[[*Ts], AsyncIterator[Any]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    isolation: Isolation = ...,
    **kwargs: Any,
) -> RunHandle[None]: ...
@overload
async def spawn(
    agent: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    isolation: Isolation = ...,
    **kwargs: Any,
) -> RunHandle[T]: ...
@overload
async def spawn(
    agent: Callable[[*Ts], Generator[Any, Any, T]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    isolation: Isolation = ...,
    **kwargs: Any,
) -> RunHandle[T]: ...
@overload
async def spawn(
    agent: Callable[[*Ts], Iterator[Any]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    isolation: Isolation = ...,
    **kwargs: Any,
) -> RunHandle[None]: ...
@overload
async def spawn(
    agent: Callable[[*Ts], T],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    isolation: Isolation = ...,
    **kwargs: Any,
) -> RunHandle[T]: ...
async def spawn(  # type: ignore[misc]  # mypy: *args: *Ts is never *args: Any
    agent: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    isolation: Isolation = "auto",
    **kwargs: Any,
) -> RunHandle[Any]:
    """Start an agent as a child of the current run, or as a new root, and return its handle at once.

    Other keyword arguments are the agent's; pass those that have the name of an option with ``functools.partial``. An
    async agent runs as a task and a blocking one on a new thread;
    with ``isolation="process"`` either runs in a separate process, which can always be ended. The items of a generator
    come from the handle's ``stream()``; the generator does not wait for its consumer. ``labels`` are added to the
    parent's; the default ``policy`` is the parent's.
    """
    agent = with_keywords(agent, args, kwargs)
    body = body_of(agent)
    options = merge_options(agent, name, labels, policy)
    if isolation != "auto":
        process_body = _process_body(agent, args, isolation)
        return start_isolated(child_run(body, options), body, process_body)
    run = child_run(body, options)
    if kind_of(body) is _ASYNC:
        return RunHandle(run, in_task(run, body, args, {}))
    return start(run, body, args)


@overload
async def call(
    agent: Callable[[*Ts], AsyncIterator[Any]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> None: ...
@overload
async def call(
    agent: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> T: ...
@overload
async def call(
    agent: Callable[[*Ts], Generator[Any, Any, T]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> T: ...
@overload
async def call(
    agent: Callable[[*Ts], Iterator[Any]],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> None: ...
@overload
async def call(
    agent: Callable[[*Ts], T],
    *args: *Ts,
    name: str | None = ...,
    labels: Mapping[str, str] | None = ...,
    policy: Policy | None = ...,
    **kwargs: Any,
) -> T: ...
async def call(  # type: ignore[misc]  # mypy: *args: *Ts is never *args: Any
    agent: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    **kwargs: Any,
) -> Any:
    """Run an agent as a child of the current run and return its value; raises as ``RunHandle.result()`` does.

    Outside a run it is a plain call, for a blocking agent on a thread. If other code cancels the call, the child is
    stopped.
    """
    agent = with_keywords(agent, args, kwargs)
    body = body_of(agent)
    if kind_of(body) is not _ASYNC:
        handle = await spawn(agent, *args, name=name, labels=labels, policy=policy)
        await handle.join()  # no other code has this handle
        return await handle.result()
    options = merge_options(agent, name, labels, policy)
    if context.current_node() is None:
        return await body(*args)
    try:
        run = child_run(body, options)
        edge = Edge(run)
        await drive(edge, body, args, {})
        outcome = run.outcome
        if outcome is not None and outcome.status is _FAILED:
            raise RunFailed(run.id, outcome) from outcome.error
        return edge.answer()
    except AgentStopped:
        await participants.engine.hold_back()
        raise


def start(run: RunNode, body: Callable[..., Any], args: tuple[Any, ...]) -> RunHandle[Any]:
    """Start a body as a run, in a new task or thread."""
    channel = channel_for(run, body)
    if channel is not None:
        body = feeding(channel, body)
    if kind_of(body) is _ASYNC:
        return RunHandle(run, in_task(run, body, args, {}), channel)
    return RunHandle(run, in_thread(run, functools.partial(perform, run, body, args, {})), channel)


def start_isolated(run: RunNode, body: Callable[..., Any], process_body: Callable[..., Any]) -> RunHandle[Any]:
    """Start a run in an agent process; ``process_body`` is its body as ``as_process_body`` returns it."""
    channel = channel_for(run, body)
    if channel is None:
        perform = functools.partial(run_blocking, run, process_body, (None,), {})
    else:
        perform = functools.partial(run_blocking, run, channel.closed_after(process_body), (channel.put,), {})
    return RunHandle(run, in_thread(run, perform), channel)


def channel_for(run: RunNode, body: Callable[..., Any]) -> Channel[Any] | None:
    """Return the channel from which the items of a run are read, if its body is a generator."""
    return Channel(run) if kind_of(body) in _GENERATORS else None


def feeding(channel: Channel[Any], body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that iterates over a generator and puts its items into a channel, then closes the channel."""
    pumping = as_pump(body, channel.put)
    return channel.closed_after_async(pumping) if kind_of(pumping) is _ASYNC else channel.closed_after(pumping)


def as_pump(body: Callable[..., Any], put: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a function that iterates over a generator and puts its items into a channel; other bodies unchanged."""
    match kind_of(body):
        case Kind.ASYNC_GENERATOR:
            return functools.partial(pump, put, body)
        case Kind.BLOCKING_GENERATOR:
            return functools.partial(pump_blocking, put, body)
        case _:
            return body


def in_thread(run: RunNode, call: Callable[[], object]) -> threading.Thread:
    """Execute a run on a new thread, with the caller's context.

    A daemon thread, not the default executor, for which ``asyncio.run`` would wait at its end.
    """
    own_context = contextvars.copy_context()
    thread = threading.Thread(
        target=own_context.run, args=(_execute, run, call), name=f"stoppable {run.name}", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:
        run.stop(reason=Reason.of(f"its thread was not started: {error}", kind=ReasonKind.EXTERNAL))
        run.skip()
        raise
    return thread


def _execute(run: RunNode, call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:
        if run.status is not _FAILED:  # a failed run has the error in its outcome, and nothing is above it
            raise


def run_blocking(run: RunNode, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockingEdge:
    """Execute a blocking body as a run, on the current thread."""
    edge = BlockingEdge(run)
    if edge.open():
        result, error = None, None
        try:
            result = body(*args, **kwargs)
        except BaseException as caught:
            error = caught
        try:
            edge.close(result, error)
        finally:
            del error  # breaks a reference cycle between the traceback and its frame
    return edge


def perform(run: RunNode, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockingEdge:
    """Execute a blocking body as a spawned run, which has no caller that could await what it returns."""
    return run_blocking(run, functools.partial(_result_of, body), args, kwargs)


def _result_of(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = body(*args, **kwargs)
    if inspect.iscoroutine(result):
        result.close()
        raise InvalidArgument(
            f"{name_of(body)} returned a coroutine, which is never awaited: pass the async function itself and its "
            "arguments after it, keywords with functools.partial"
        )
    if inspect.isawaitable(result):
        raise InvalidArgument(
            f"{name_of(body)} returned {type(result).__name__!r}, which is never awaited: pass an async function that "
            "calls and awaits it"
        )
    return result


def _process_body(
    agent: Callable[..., Any], args: tuple[Any, ...], isolation: Isolation
) -> Callable[[Callable[[Any], object] | None], Any]:
    if isolation != "process":
        raise InvalidArgument(f"unknown isolation {isolation!r}: use auto or process")
    from stoppable._engine.isolation.host import as_process_body  # noqa: PLC0415 - rarely needed

    return as_process_body(agent, args)


def child_run(body: Callable[..., Any], options: RunOptions = NO_OPTIONS) -> RunNode:
    """Return a new child of the current run, entered through its gate; outside any run, a new root."""
    name = options.name or (body.__name__ if isinstance(body, FunctionType) else name_of(body))
    scope = context.current.get()
    if scope is OUTSIDE:
        return RunNode(name, labels=options.labels, policy=options.policy)
    require_stack_room()
    check()
    parent = scope.run_here()
    if parent is not None and parent.budget is not None:
        parent.budget.spend("subrun")
    return RunNode(name, parent, labels=options.labels, policy=options.policy)


def root_run(agent: Callable[..., Any]) -> RunNode:
    """Return a root run for an agent, with the agent's own options."""
    options = options_of(agent)
    return RunNode(name_of(agent), labels=options.labels, policy=options.policy)

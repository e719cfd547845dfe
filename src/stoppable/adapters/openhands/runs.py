"""``arun()`` and ``run()`` as runs that can be stopped."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import stoppable
from stoppable import sync
from stoppable.adapters.openhands.sealing import seal
from stoppable.adapters.openhands.supervised import Supervised, Turn, current_turn

_SEAL_SECONDS = 5.0
_LOOK_SECONDS = 0.02
_NAME, _CHILD = "openhands", "sub-agent"

Body = Callable[[], Awaitable[None]]

_background: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references


async def arun(conversation: Any, supervised: Supervised, plain: Callable[[Any], Awaitable[None]]) -> None:
    """Run a conversation as a run in a separate task, so that the caller's cancel and stoppable's never mix."""
    with supervised.starting() as start:
        before = supervised.turn
        if before is not None and not before.unwound.is_set():
            # The caller of an earlier run may have been cancelled; two runs on one loop would share the state's lock.
            await stoppable.to_thread(before.unwound.wait)
        body = functools.partial(_body, conversation, supervised, plain, start)
        run = await _executed(conversation, supervised, body)
    if supervised.is_unsealed(run):
        await stoppable.to_thread(seal, conversation, supervised.turn_of(run))
    stoppable.check()
    outcome = run.outcome
    assert outcome is not None, "it is over"
    if outcome.status == "failed" and outcome.error is not None:
        raise outcome.error


async def _executed(conversation: Any, supervised: Supervised, body: Body) -> stoppable.Run:
    """Execute a body as a run, and return the run when it is over; if the caller is cancelled, the run is stopped."""
    asked, supervisor = supervised.settings, supervised.settings.supervisor
    if isinstance(supervisor, sync.Supervisor):
        raise stoppable.InvalidArgument("arun() needs a stoppable.Supervisor: stoppable.sync.Supervisor is for run()")
    if stoppable.current_run() is not None:
        handle = await stoppable.spawn(body, name=_CHILD)
    elif supervisor is None or supervised.caller() is not None:
        return await _in_task(_unsupervised(conversation, supervised), body)
    else:
        handle = await supervisor.start(body, name=_NAME, **_options(conversation, asked))
    await handle.join()
    return handle.run


async def _in_task(opened: stoppable.open_run, body: Body) -> stoppable.Run:
    """Execute a body as a run with an owner, limits or a parent: ``spawn`` takes none of them."""
    runs: list[stoppable.Run] = []

    async def execute() -> None:
        async with opened as run:
            runs.append(run)
            await body()

    task = asyncio.create_task(execute())
    _background.add(task)
    task.add_done_callback(_forget)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        for run in runs:
            reason = stoppable.Reason.of("CancelledError from outside", kind=stoppable.ReasonKind.EXTERNAL)
            run.stop("immediate", reason)
        if not runs:
            task.cancel()
        raise
    if not runs:
        task.result()
    return runs[0]


def _forget(task: asyncio.Task[None]) -> None:
    _background.discard(task)
    if not task.cancelled():
        task.exception()  # how the run ended is in its outcome


async def _body(
    conversation: Any, supervised: Supervised, plain: Callable[[Any], Awaitable[None]], start: object
) -> None:
    run = stoppable.current_run()
    assert run is not None, "it is the body of one"
    turn = supervised.begin(run, start)
    current_turn.set(turn)
    try:
        stoppable.check()  # an interrupt() may have come before
        await plain(conversation)
    finally:
        try:
            if run.token.stopped:
                with stoppable.shielded(_SEAL_SECONDS):
                    await stoppable.to_thread(seal, conversation, turn)
        finally:
            _end_jobs(turn)
            turn.unwound.set()


def run(conversation: Any, supervised: Supervised, plain: Callable[[Any], None]) -> None:
    """Run a conversation as a run, on the calling thread."""
    opened: stoppable.Run | None = None
    try:
        with supervised.starting() as start, _opened(conversation, supervised) as entered:
            opened = entered
            _block(conversation, supervised.begin(entered, start), plain)
    except (stoppable.RunStopped, stoppable.RunLost):
        if opened is None:  # its body never ran
            seal(conversation, None)
    except KeyboardInterrupt:
        while opened is not None and opened.outcome is None:  # as long as the ladder; another Ctrl-C leaves at once
            threading.Event().wait(_LOOK_SECONDS)
        raise
    if opened is not None and supervised.is_unsealed(opened):
        seal(conversation, supervised.turn_of(opened))


def _opened(conversation: Any, supervised: Supervised) -> Any:
    asked, supervisor = supervised.settings, supervised.settings.supervisor
    if supervisor is None or supervised.caller() is not None or stoppable.current_run() is not None:
        return _unsupervised(conversation, supervised)
    blocking = supervisor.blocking if isinstance(supervisor, stoppable.Supervisor) else supervisor
    return blocking.open_run(_NAME, **_options(conversation, asked))


def _unsupervised(conversation: Any, supervised: Supervised) -> stoppable.open_run:
    """Return a run that no supervisor keeps, or a child of one that may be kept."""
    asked, caller = supervised.settings, supervised.caller()
    if caller is not None or stoppable.current_run() is not None:
        return stoppable.open_run(_CHILD, parent=caller)
    labels = _labels(conversation, asked)
    return stoppable.open_run(_NAME, owner=asked.owner, labels=labels, limits=asked.limits, policy=asked.policy)


def _block(conversation: Any, turn: Turn, plain: Callable[[Any], None]) -> None:
    token = current_turn.set(turn)
    try:
        stoppable.check()
        plain(conversation)
    except KeyboardInterrupt:
        # Before the clean-up below, which is that of a stopped run; the exception itself propagates.
        turn.run.stop("immediate", stoppable.Reason.of("Ctrl-C", kind=stoppable.ReasonKind.SHUTDOWN))
        raise
    finally:
        try:
            if turn.run.token.stopped:
                with stoppable.shielded(_SEAL_SECONDS):
                    seal(conversation, turn)
        finally:
            _end_jobs(turn)
            current_turn.reset(token)
            turn.unwound.set()


def _end_jobs(turn: Turn) -> None:
    if turn.run.token.stopped and turn.supervised.settings.background == "end":
        turn.shells.end_jobs()


def _options(conversation: Any, asked: Any) -> dict[str, Any]:
    return {
        "key": f"openhands:{conversation.id}",
        "owner": asked.owner,
        "labels": _labels(conversation, asked),
        "limits": asked.limits,
        "policy": asked.policy,
    }


def _labels(conversation: Any, asked: Any) -> dict[str, str]:
    return {"conversation": str(conversation.id), **(asked.labels or {})}

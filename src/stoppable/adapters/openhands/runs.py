"""``arun()`` and ``run()`` as runs that can be stopped."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import stoppable
from stoppable import sync
from stoppable.adapters.openhands.sealing import seal
from stoppable.adapters.openhands.supervised import Supervised, Turn, current_turn

_SEAL_SECONDS = 5.0
_NAME, _CHILD = "openhands", "sub-agent"


async def arun(conversation: Any, supervised: Supervised, plain: Callable[[Any], Awaitable[None]]) -> None:
    """Run a conversation as a run in a separate task, so that the caller's cancel and stoppable's never mix."""
    before = supervised.turn
    if before is not None and not before.unwound.is_set():
        # The caller of an earlier run may have been cancelled; two runs on one loop would share the lock of the state.
        await stoppable.to_thread(before.unwound.wait)
    handle = await _started(conversation, supervised, functools.partial(_body, conversation, supervised, plain))
    outcome = await handle.join()
    if handle.run.token.stopped and handle.run.started_at is None:  # its body never ran
        await stoppable.to_thread(seal, conversation, None)
    stoppable.check()
    if outcome.status == "failed" and outcome.error is not None:
        raise outcome.error


async def _started(conversation: Any, supervised: Supervised, body: Any) -> stoppable.RunHandle[None]:
    asked, supervisor = supervised.settings, supervised.settings.supervisor
    if isinstance(supervisor, sync.Supervisor):
        raise stoppable.InvalidArgument("arun() needs a stoppable.Supervisor: stoppable.sync.Supervisor is for run()")
    if stoppable.current_run() is not None:
        return await stoppable.spawn(body, name=_CHILD)
    if supervisor is None:
        return await stoppable.spawn(body, name=_NAME, labels=_labels(conversation, asked), policy=asked.policy)
    return await supervisor.start(body, name=_NAME, **_options(conversation, asked))


async def _body(conversation: Any, supervised: Supervised, plain: Callable[[Any], Awaitable[None]]) -> None:
    run = stoppable.current_run()
    assert run is not None, "it is the body of one"
    turn = supervised.begin(run)
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
    turn: Turn | None = None
    try:
        with _opened(conversation, supervised) as opened:
            turn = supervised.begin(opened)
            _block(conversation, turn, plain)
    except (stoppable.RunStopped, stoppable.RunLost):
        if turn is None:  # its body never ran
            seal(conversation, None)


def _opened(conversation: Any, supervised: Supervised) -> contextlib.AbstractContextManager[stoppable.Run]:
    asked, supervisor = supervised.settings, supervised.settings.supervisor
    caller = supervised.caller()
    if caller is not None or stoppable.current_run() is not None:
        return sync.open_run(_CHILD, parent=caller)
    if supervisor is None:
        labels = _labels(conversation, asked)
        return sync.open_run(_NAME, owner=asked.owner, labels=labels, limits=asked.limits, policy=asked.policy)
    blocking = supervisor.blocking if isinstance(supervisor, stoppable.Supervisor) else supervisor
    return blocking.open_run(_NAME, **_options(conversation, asked))


def _block(conversation: Any, turn: Turn, plain: Callable[[Any], None]) -> None:
    token = current_turn.set(turn)
    try:
        stoppable.check()
        plain(conversation)
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

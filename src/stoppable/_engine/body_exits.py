"""Classifies how a body ended: with a stop, a foreign exception, or an error."""

from __future__ import annotations

from asyncio import CancelledError, Runner
from opcode import opmap
from typing import Any

from stoppable._core.outcome import Outcome
from stoppable._core.reason import ReasonKind
from stoppable._core.state import Status
from stoppable._engine import tasks
from stoppable.errors import AgentStopped, RunStopped

OUTSIDERS = (CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
_KINDS: dict[type[BaseException], ReasonKind] = {
    CancelledError: ReasonKind.EXTERNAL,
    GeneratorExit: ReasonKind.DISCONNECT,
    KeyboardInterrupt: ReasonKind.SHUTDOWN,
    SystemExit: ReasonKind.SHUTDOWN,
}


def is_ours(error: BaseException | None) -> bool:
    """Return whether an exception is a cancel that stoppable issued, or was raised while one was handled."""
    while error is not None:
        if isinstance(error, CancelledError) and tasks.is_marked_ours(error):
            return True
        error = error.__context__
    return False


def others_cancel(error: BaseException | None) -> CancelledError | None:
    """Return the foreign cancel that caused an exception, or during whose handling it was raised."""
    while error is not None:
        if isinstance(error, CancelledError) and not tasks.is_marked_ours(error):
            return error
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    return None


_RAISE = opmap["RAISE_VARARGS"]
_HANDLERS = (Runner._on_sigint.__code__,)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def is_raised_by_code(error: BaseException) -> bool:
    """Return whether a ``raise`` statement raised an exception; Python's handler of Ctrl-C raises without one."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code in _HANDLERS:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


Sorted = tuple[AgentStopped | None, BaseException | None, BaseException | None]


def sort(error: BaseException | None, late: BaseException | None = None) -> Sorted:
    """Split a body's exception, and later ones, into a stop, a foreign exception and an error."""
    if late is not None:
        stop, outsider, rest = sort(error)
        late_stop, late_outsider, late_rest = sort(late)
        return stop or late_stop, outsider or late_outsider, rest or late_rest
    if error is None:
        return None, None, None
    if isinstance(error, AgentStopped):
        return error, None, None
    if isinstance(error, OUTSIDERS):
        return None, error, None
    if isinstance(error, BaseExceptionGroup):
        stops, others = error.split(AgentStopped)
        outsiders, rest = (None, None) if others is None else others.split(OUTSIDERS)
        return _leaf(stops), _leaf(outsiders), rest
    return None, None, error


def _leaf(group: BaseException | None) -> Any:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def kind(outsider: BaseException) -> ReasonKind:
    return next(kind for cls, kind in _KINDS.items() if isinstance(outsider, cls))


def stray(stop: AgentStopped) -> Exception:
    """Turn a stop of an unrelated run into an error: the body awaited code of another run."""
    error = RunStopped(stop.target, Outcome(status=Status.STOPPED, reason=stop.reason))
    error.__cause__ = stop
    return error

"""Encodes the values that leave an agent process: pickled, or as JSON if the agent is not trusted."""

from __future__ import annotations

import builtins
import io
import json
import pickle
from dataclasses import is_dataclass
from enum import Enum, StrEnum
from typing import Any

from stoppable._engine.source_lines import trace_of
from stoppable._json import name_of, plain
from stoppable.errors import InvalidArgument

LIMIT = 64 * 1024 * 1024
_PARTS = ("outcome", "policy", "reason", "state")
_MODULES = {"stoppable._engine.isolation.messages", *(f"stoppable._core.{name}" for name in _PARTS)}
_IN_THE_PROCESS = "in the agent process:\n"


class Values(StrEnum):
    """How results, items, partials, event data and errors are transferred."""

    PICKLE = "pickle"
    """Unchanged; unpickling them may execute code of the agent."""
    JSON = "json"
    """As JSON; an error becomes one with the same name."""

    def dump(self, value: object) -> bytes:
        """Encode a value."""
        if self is Values.PICKLE:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if isinstance(value, BaseException):
            form: Any = {"type": name_of(value), "message": text_of(value), "trace": trace_of(value)}
        else:
            form, omitted = plain(value, LIMIT // 2)
            form = form if omitted is None else {"omitted": omitted}
        return json.dumps(form).encode()

    def load(self, packed: bytes) -> Any:
        """Decode a value."""
        if self is Values.PICKLE:
            return pickle.loads(packed)  # noqa: S301 - the caller has chosen to trust it
        return json.loads(packed)

    def load_error(self, packed: bytes) -> BaseException | None:
        """Decode an error."""
        found = self.load(packed)
        if self is Values.PICKLE or found is None:
            return found  # type: ignore[no-any-return]
        error = _class_named(str(found["type"]))(str(found["message"]))
        error.add_note(_IN_THE_PROCESS + str(found["trace"]))
        return error


def _class_named(name: str) -> type[Exception]:
    """Return the built-in exception with a name if it takes a text, otherwise a new class with that name.

    Never a class of the agent: creating it would execute the agent's code here.
    """
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and known.__str__ is BaseException.__str__:
        return known
    return type(name, (RuntimeError,), {})


def sendable_error(error: BaseException) -> BaseException:
    """Return a copy of an error with its traceback as text; the original is still propagating here."""
    trace = trace_of(error)
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled on the same line
        copy.add_note(_IN_THE_PROCESS + trace)
    except Exception:  # it cannot be pickled: its __init__ takes other arguments than it passes on, or it holds a lock
        copy = RuntimeError(f"{type(error).__name__}: {text_of(error)}")
        copy.add_note(_IN_THE_PROCESS + trace)
    return copy


def text_of(error: BaseException) -> str:
    """Return the text of an error, even if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception:
        return "it cannot be shown"


class _Checked(pickle.Unpickler):
    """Unpickles only messages and their parts, because other classes could execute code."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and (is_dataclass(found) or issubclass(found, (Enum, tuple))):
                return found
        raise pickle.UnpicklingError(f"an agent process sent {module}.{name}, which is not part of a message")


def checked(packed: bytes) -> Any:
    """Decode a message from an agent process."""
    return _Checked(io.BytesIO(packed)).load()


def refused(what: str, error: Exception) -> InvalidArgument:
    """Return the error for a value that cannot be sent."""
    return InvalidArgument(
        f"cannot send {what} to or from an agent process: {error}. Arguments, results, items, partials and events of "
        "an agent with isolation='process' must be picklable"
    )

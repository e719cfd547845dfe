"""Turns frozen dataclasses into JSON and back; names are in camelCase on the wire."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
import json
import math
import threading
import types
import typing
from collections.abc import Mapping
from enum import Enum, StrEnum
from functools import cache
from types import NoneType
from typing import Any, TypeVar

from stoppable.errors import InvalidArgument

T = TypeVar("T")


def dump(value: Any) -> Any:
    """Return the JSON form of a record, or of a value in it."""
    if isinstance(value, str):
        return value.value if isinstance(value, StrEnum) else value
    if value is None or isinstance(value, int | float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {wire: dump(getattr(value, name)) for name, wire, _ in _fields(type(value))}
    if isinstance(value, Mapping):
        return {str(key): dump(item) for key, item in value.items()}
    return [dump(item) for item in typing.cast("typing.Iterable[Any]", value)]


def shallow(value: Any) -> Any:
    """Return the JSON form of a record without converting its values; for an encoder's ``default=``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {wire: getattr(value, name) for name, wire, _ in _fields(type(value))}
    return dict(value) if isinstance(value, Mapping) else list(typing.cast("typing.Iterable[Any]", value))


def load(kind: type[T], data: Any) -> T:
    """Return a record from its JSON form; unknown names are ignored, so that data of newer versions can be read."""
    record: T = _load(kind, data)
    return record


def _load(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = [arg for arg in typing.get_args(kind) if arg is not NoneType]
        return None if data is None else _load_one_of(kinds, data)
    if origin in (tuple, frozenset):
        return origin(_load(typing.get_args(kind)[0], item) for item in data)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _load(typing.get_args(kind)[1], item) for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(
            **{
                name: data[wire] if is_plain else _load(hint, data[wire])
                for name, wire, hint, is_plain in _loaded(kind)
                if wire in data
            }
        )
    return data


def _load_one_of(kinds: list[Any], data: Any) -> Any:
    *others, last = kinds
    for kind in others:  # a value of one of several enums
        with contextlib.suppress(ValueError):
            return _load(kind, data)
    return _load(last, data)


@cache
def _loaded(kind: type) -> tuple[tuple[str, str, Any, bool], ...]:
    return tuple((name, wire, hint, _is_plain(hint)) for name, wire, hint in _fields(kind))


def _is_plain(hint: Any) -> bool:
    """Return whether values of a type are their own JSON form, so that converting them can be skipped."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(_is_plain(arg) for arg in typing.get_args(hint))
    return hint in (Any, str, int, float, bool, type(None))


@cache
def _fields(kind: type) -> tuple[tuple[str, str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, _camel(field.name), hints[field.name]) for field in dataclasses.fields(kind))


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def plain(value: object, limit: int) -> tuple[Any, str | None]:
    """Return the JSON form of a value from an agent, or None and the reason why it has none.

    Dates, enums, dataclasses, pydantic models, sets and bytes that are text have one. No value can make this raise, or
    use unbounded time or memory.
    """
    if (type(value) is str or type(value) is bytes) and len(value) > limit:  # reported without copying it
        return None, f"{len(value):,} characters are over the limit of {limit:,} bytes"
    if _is_token(value, limit):
        return (value.copy() if isinstance(value, dict) else value), None
    try:
        text = _encode(value, limit)
        return json.loads(text), None
    except _TooLong:
        return None, f"its JSON form is over the limit of {limit:,} bytes, or has no end"
    except BaseException as error:  # it may contain anything: a __repr__ or __iter__ that raises, a cycle, a sys.exit()
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # not raised by the value: the user pressed Ctrl-C
        return None, _utf8(f"a value of type {name_of(value)} has no JSON form: {name_of(error)}: {_text(error)}"[:500])


def _is_token(value: object, limit: int) -> bool:
    """Return whether a value is obviously its own JSON form: a short text, or a few facts. A fast path for events."""
    share = limit // (2 * _FACTS)
    if share < _NUMBER or type(value) is not dict:
        return type(value) is str and _is_small(value, share)
    return len(value) <= _FACTS and all(
        type(key) is str and _is_small(key, share) and _is_small(item, share) for key, item in value.items()
    )


def _is_small(item: Any, limit: int) -> bool:
    kind = type(item)
    if kind is str:
        # A character takes up to six bytes in JSON, and half of a surrogate pair has no form at all.
        return bool(6 * len(item) + 6 <= limit and (item.isascii() or _utf8(item) is item))
    if kind is int:
        return bool(item.bit_length() < 64)
    return math.isfinite(item) if kind is float else item is None or kind is bool


_FACTS = 8
_NUMBER = 40  # bytes: more than the longest form of a number, with separators


def is_plain(value: object) -> bool:
    """Return whether a value consists of a limited number of plain JSON values, so that ``plain`` is fast.

    No code of the agent is called, neither here nor in ``plain``.
    """
    left, waiting = _FEW, [value]
    while waiting:
        item: Any = waiting.pop()
        kind = type(item)
        if kind is dict:
            waiting += item
            waiting += item.values()
        elif kind is list or kind is tuple:
            waiting += item
        elif kind not in _PLAIN:
            return False
        left -= 1
        if len(waiting) > left:
            return False
    return True


_FEW = 10_000
_PLAIN = (str, int, float, bool, type(None))


class _TooLong(Exception):
    pass


def _encode(value: object, limit: int) -> str:
    scale = _Scale(limit)
    scale.weigh(value)

    def default(inner: Any) -> Any:
        form = _default(inner)
        scale.weigh(form)
        return form

    text = _utf8(json.dumps(value, default=default, ensure_ascii=False, allow_nan=False))
    if len(text.encode()) > limit:
        raise _TooLong
    return text


class _Scale:
    """Computes a lower bound of the JSON size of a value, before it is converted.

    A list that contains the same list ten times, which contains the same list ten times …, is small in memory, but its
    JSON is larger than any memory.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit

    def weigh(self, value: object) -> None:
        left, waiting = self._left, [value]
        while waiting:
            item: Any = waiting.pop()
            kind = type(item)
            if kind is str:
                left -= len(item) + 2
            elif kind is int:
                left -= 1 + (item.bit_length() >> 2)
            else:
                left -= 1
                if kind is dict:
                    waiting += item
                    waiting += item.values()
                elif kind is list or kind is tuple:
                    waiting += item
                elif issubclass(kind, _CONTAINERS):  # its own iterator, which may be endless
                    parts = item.items() if isinstance(item, dict) else item
                    waiting += itertools.islice(parts, max(left, 0) + 1)
            if left < 0 or len(waiting) > left + 2:
                raise _TooLong
        self._left = left


_CONTAINERS = (list, tuple, dict)


def _utf8(text: str) -> str:
    """Return a text without lone surrogates, which cannot be stored or sent; a text that was cut may have them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _default(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, set | frozenset | Mapping):
        return dict(value) if isinstance(value, Mapping) else list(value)
    if isinstance(value, bytes):
        return value.decode()
    model_dump = getattr(value, "model_dump", None)
    if callable(model_dump):
        return model_dump(mode="json")
    raise InvalidArgument(f"{type(value).__name__} is not one of the types that have a JSON form")


def name_of(value: object) -> str:
    """Return the name of a value's type."""
    try:
        return str(type(value).__name__)
    except BaseException:
        return "unknown"  # a metaclass may define a __qualname__ that raises


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "it cannot be shown"

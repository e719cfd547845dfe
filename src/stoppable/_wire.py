"""Turns frozen dataclasses into JSON and back; names are in camelCase on the wire."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from stoppable.errors import InvalidArgument

T = TypeVar("T")


def dump(value: Any) -> Any:
    """Return the JSON form of one of our records, or of a value in it."""
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
    """Return the JSON form of a record but for what is in it: for an encoder that asks again (``default=``)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {wire: getattr(value, name) for name, wire, _ in _fields(type(value))}
    return dict(value) if isinstance(value, Mapping) else list(typing.cast("typing.Iterable[Any]", value))


def load(kind: type[T], data: Any) -> T:
    """Return the record that a JSON form tells of; unknown names are ignored, so that newer writers can be read."""
    found: T = _load(kind, data)
    return found


def _load(kind: Any, data: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return (
            None if data is None else _load(next(arg for arg in typing.get_args(kind) if arg is not type(None)), data)
        )
    if origin is tuple:
        return tuple(_load(typing.get_args(kind)[0], item) for item in data)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _load(typing.get_args(kind)[1], item) for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(**{name: _load(hint, data[wire]) for name, wire, hint in _fields(kind) if wire in data})
    return data


@cache
def _fields(kind: type) -> tuple[tuple[str, str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, _camel(field.name), hints[field.name]) for field in dataclasses.fields(kind))


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def plain(value: object, limit: int) -> tuple[Any, str | None]:
    """Return the JSON form of whatever an agent gave us, or None and the reason why it has none.

    Dates, enums, dataclasses, pydantic models, sets and bytes that are text have one. Nothing an agent returns can make
    this raise.
    """
    try:
        text = json.dumps(value, default=_default, allow_nan=False)
        size = len(text.encode())
    except Exception as error:  # a __repr__, a __iter__, a cycle: anything may be in there
        return None, f"a value of type {type(value).__name__} has no JSON form: {type(error).__name__}: {error}"[:500]
    if size > limit:
        return None, f"{size:,} bytes are over the limit of {limit:,}"
    return json.loads(text), None


def _default(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, set | frozenset | Mapping):
        return dict(value) if isinstance(value, Mapping) else list(value)
    if isinstance(value, bytes):
        return value.decode()
    model_dump = getattr(value, "model_dump", None)
    if callable(model_dump):
        return model_dump(mode="json")
    raise InvalidArgument(f"{type(value).__name__} is not one of the types that have one")

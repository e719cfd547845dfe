"""JSON as bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from stoppable._json import shallow

# What is told about runs is nobody else's business, and never markup.
PRIVATE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def dumps(value: Any) -> bytes:
    """Return the JSON of a value, with our records in it; whatever an agent left in a record has one."""
    try:
        return orjson.dumps(value, shallow, orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:  # a whole number of more than 64 bits, or half a character
        return json.dumps(value, default=shallow).encode()


def loads(text: bytes) -> Any:
    """Return the value of JSON; unlike json, orjson takes neither NaN nor half a character."""
    value = orjson.loads(text)
    # It makes a whole number of more than 64 bits a float: an id, say, would be another one.
    return json.loads(text) if _LONG_NUMBER.search(text) else value


_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def one_line(text: bytes) -> bytes:
    """Return JSON without the line breaks of Unicode, which many clients take for the end of a line."""
    for raw, escaped in _LINE_BREAKS:
        if raw in text:
            text = text.replace(raw, escaped)
    return text


_LINE_BREAKS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\u0085\u2028\u2029")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body: a record of ours, or values and records."""
    return Response(dumps(value), status, {**PRIVATE, **(headers or {})}, "application/json")

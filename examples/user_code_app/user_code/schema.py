"""Says where a result differs from the schema that its author gave. Advisory: it never fails a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def warnings(value: Any, schema: Mapping[str, Any] | None, where: str = "result") -> list[str]:
    """Return what is wrong, looking at ``type``, ``required`` and ``properties``."""
    if not schema:
        return []
    expected = _TYPES.get(schema.get("type", ""), object)
    if not isinstance(value, expected):
        return [f"{where} is {type(value).__name__}, not {schema['type']}"]
    if not isinstance(value, dict):
        return []
    found = [f"{where} has no {name!r}" for name in schema.get("required", ()) if name not in value]
    for name, inner in schema.get("properties", {}).items():
        if name in value:
            found += warnings(value[name], inner, f"{where}.{name}")
    return found

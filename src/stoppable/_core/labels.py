"""Labels: short texts by which runs are found and stopped together."""

from __future__ import annotations

from collections.abc import Mapping

from stoppable.errors import InvalidArgument

LABEL_LENGTH = 256
"""The maximum length of a label's name, of its value, and of an owner."""

_LABELS = 32


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise an error if labels are invalid."""
    if not isinstance(labels, Mapping) or len(labels) > _LABELS:
        raise InvalidArgument(f"too many labels, or not a mapping: use up to {_LABELS} pairs of strings")
    for text in (*labels.keys(), *labels.values()):
        if not isinstance(text, str) or len(text) > LABEL_LENGTH:
            raise InvalidArgument(f"invalid label {str(text)[:40]!r}: use a string of up to {LABEL_LENGTH} characters")

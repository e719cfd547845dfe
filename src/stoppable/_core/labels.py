"""Labels: short texts by which runs are found and stopped together."""

from __future__ import annotations

from collections.abc import Mapping

from stoppable.errors import InvalidArgument

LABEL_LENGTH = 256
"""Of the name of a label, of its value, and of an owner."""

_LABELS = 32


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise an error that says what labels are."""
    if not isinstance(labels, Mapping) or len(labels) > _LABELS:
        raise InvalidArgument(f"labels are up to {_LABELS} pairs of texts")
    for text in (*labels.keys(), *labels.values()):
        if not isinstance(text, str) or len(text) > LABEL_LENGTH:
            raise InvalidArgument(f"a label is a text of up to {LABEL_LENGTH} characters, not {str(text)[:40]!r}")

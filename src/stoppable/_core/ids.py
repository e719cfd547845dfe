"""Run ids: 128 random bits, so that ids of other runs cannot be guessed."""

from __future__ import annotations

import os

RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}"
"""The ids that a caller may give its runs, as a regular expression."""

_BATCH = 256
_fresh: list[str] = []


def new_id() -> str:
    """Return a new id; reads random bytes from the system for many ids at once."""
    try:
        return _fresh.pop()
    except IndexError:
        digits = os.urandom(16 * _BATCH).hex()
        _fresh.extend(digits[at : at + 32] for at in range(0, len(digits), 32))
        return _fresh.pop()


os.register_at_fork(after_in_child=_fresh.clear)  # a forked child must not hand out its parent's ids again

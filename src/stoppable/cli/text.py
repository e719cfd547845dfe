"""Text of agents and users, sanitized for a terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

_ALLOWED = {"\n", "\t", "\u200c", "\u200d"}  # joiners belong to scripts and emoji
# Control characters, text direction, invisible formats, surrogates, and line ends other than LF.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def safe(value: object) -> str:
    """Return a text that cannot move the cursor, change colours, titles or the clipboard, or hide what it says."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in _ALLOWED or unicodedata.category(char) not in _UNSAFE else _escape(char) for char in text
    )


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def last_line(value: object, width: int = 60) -> str:
    """Return the last non-blank line of a text, sanitized and not longer than a width."""
    lines = [line for line in safe(value).expandtabs(1).split("\n") if line.strip()]
    last = lines[-1].strip() if lines else ""
    return last if len(last) <= width else f"…{last[-width + 1 :]}"


def one_line(value: object, width: int = 200) -> str:
    """Return a text on one line, sanitized, and cut at its end."""
    text = " ".join(safe(value).split())
    return text if len(text) <= width else f"{text[: width - 1]}…"


def plain(value: object, style: str = "") -> Text:
    """Return a text for rich in which nothing is markup."""
    from rich.text import Text  # noqa: PLC0415 - errors are printed without rich

    return Text(safe(value), style=style)


def value_text(value: Any) -> str:
    """Return a result as people read it: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=2)

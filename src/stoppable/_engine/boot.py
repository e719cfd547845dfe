"""The clock that leases go by: it runs on while the machine sleeps, nobody can set it, and a reboot begins it anew."""

from __future__ import annotations

import time
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Return the seconds since the machine was started."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str:
    """Return what names this start of the machine, or nothing where the system has no name for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""

"""The clock for leases: it continues while the machine sleeps, cannot be set, and restarts with a reboot."""

from __future__ import annotations

import time
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Return the seconds since the machine was started."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str:
    """Return the system's id of the current boot, or an empty string if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""

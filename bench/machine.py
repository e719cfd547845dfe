"""What a reader must know about the machine to judge a table; nothing that names the machine or its owner."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

_STATM = Path("/proc/self/statm")
_CPUINFO = Path("/proc/cpuinfo")


def facts(packages: Iterable[str]) -> list[tuple[str, str]]:
    """Return machine, Python and package versions, and the date."""
    return [
        ("CPU", f"{_cpu()}, {_cores()} cores"),
        ("OS", _system()),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("Packages", ", ".join(f"{name} {_version(name)}" for name in packages)),
        ("Load average before the run", f"{os.getloadavg()[0]:.1f}"),
        ("Date", datetime.now(UTC).date().isoformat()),
    ]


def resident_bytes() -> int:
    """Return the memory this process occupies; where the system does not tell, the most it ever did."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _cpu() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    # A container may see more cores than it is allowed to use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _system() -> str:
    # Two numbers of the kernel's version: the rest is often the name of somebody's build.
    kernel = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except (OSError, KeyError):
        return kernel


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"

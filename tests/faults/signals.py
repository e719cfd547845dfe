"""Stops runs while signals rain on the process and on its control thread; every stop must end.

    python tests/faults/signals.py --stops 10000

SIGALRM and SIGPROF come from interval timers, SIGCHLD from processes that end and from ``kill``; SIGUSR1 is aimed at
the control thread itself. It prints one row of bench/results/signals.md, and exits with 1 if a stop did not end.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import stoppable

AT_ONCE = 20
POLICY = stoppable.Policy(grace=0.02, interrupt=0.01, cancel=5, kill=5, blind_grace=0.02)
RAIN = (signal.SIGALRM, signal.SIGPROF, signal.SIGCHLD, signal.SIGUSR1)

counts: collections.Counter[int] = collections.Counter()


def pour(over: threading.Event) -> None:
    """Send the signals that no timer sends."""
    turn = 0
    while not over.wait(0.0007):
        turn += 1
        os.kill(os.getpid(), signal.SIGCHLD)
        for thread in threading.enumerate():
            if thread.name == "stoppable-control" and thread.ident is not None:
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
        if turn % 50 == 0:
            subprocess.run(["true"], check=True)  # a SIGCHLD that a process sends


async def one(number: int) -> bool:
    """Stop one run; alternately one that has never looked and one that works on until CANCEL."""

    async def agent() -> None:
        if number % 2:
            stoppable.check()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent, policy=POLICY)
    await asyncio.sleep(0)
    await handle.stop()
    try:
        async with asyncio.timeout(30):
            return (await handle.outcome()).status == "stopped"
    except TimeoutError:
        return False


async def stop_all(stops: int) -> int:
    ended = 0
    for first in range(0, stops, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, stops))
        ended += sum(await asyncio.gather(*(one(number) for number in numbers)))
    return ended


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stops", type=int, default=10_000)
    stops: int = parser.parse_args().stops
    for signum in RAIN:
        signal.signal(signum, lambda signum, _: counts.update([signum]))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    over = threading.Event()
    rain = threading.Thread(target=pour, args=(over,))
    rain.start()
    began = time.monotonic()
    try:
        ended = asyncio.run(stop_all(stops))
    finally:
        seconds = time.monotonic() - began
        over.set()
        rain.join()
        for signum in RAIN:
            signal.signal(signum, signal.SIG_IGN)
    handled = " | ".join(f"{counts[signum]:,}" for signum in RAIN)
    print(f"| {platform.python_version()} | {stops:,} | {ended:,} | {seconds:.0f} | {handled} |")
    return 0 if ended == stops else 1


if __name__ == "__main__":
    sys.exit(main())

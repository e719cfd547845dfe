"""What processes of the tests execute; in a module, because multiprocessing imports it there."""

import os
import signal
import time
from pathlib import Path


def touch_and_sleep(path, seconds=60, *, ignores_term=False):
    if ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).touch()
    time.sleep(seconds)
    return path


def double(number):
    return 2 * number


def touch_and_sleep_of(args):
    return touch_and_sleep(*args)


def touch_and_die(path, go):
    Path(path).touch()
    while not Path(go).exists():
        time.sleep(0.01)
    os._exit(1)

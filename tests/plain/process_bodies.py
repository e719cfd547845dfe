"""What processes of the tests execute; in a module, because multiprocessing imports it there."""

import time
from pathlib import Path


def touch_and_sleep(path, seconds=60):
    Path(path).touch()
    time.sleep(seconds)
    return path


def double(number):
    return 2 * number

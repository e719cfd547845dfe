"""The files of deploy/, and how a test has their parts on this machine."""

import os
import shutil
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs/how-to/deploy.md"
SITE = "agents.example.com"
SECONDS = 600  # only a defect takes that long, also on a busy machine


def program(name):
    """Return the path of a program, or skip the test: `make test-deploy` installs it if it may, or says that loudly."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name.upper()} WAS NOT TESTED: it is not installed")
    return found


def changed(file, replacements):
    """Return the text of a file with what is different here; everything else is as it is deployed."""
    text = file.read_text()
    for old, new in replacements.items():
        assert old in text, f"{file.name} has no {old!r}"
        text = text.replace(old, new)
    return text


def wait_until(condition):
    """Wait for something that a server says, and return it; ten times a second, since to ask takes its time too."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {SECONDS} seconds"
        time.sleep(0.1)
    return found

"""Processes that others started are followed by a pidfd and signalled one by one."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.waiting import wait_until

from stoppable._core.values import new_id
from stoppable._engine.processes import table
from stoppable._engine.processes.adopted import Family, Watcher


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait(30)


@pytest.fixture(params=["pidfd", "no pidfd"])
def watcher(request, monkeypatch):
    if request.param == "no pidfd":
        monkeypatch.setattr(table, "open_pidfd", lambda pid: None)
    return Watcher()


def test_the_end_of_a_process_is_noticed(watcher, sleeper):
    ended = threading.Event()
    watcher.watch(sleeper.pid, ended.set)
    assert not ended.wait(0.1)
    sleeper.kill()
    assert ended.wait(30)  # though nobody has reaped it


def test_a_process_that_is_gone_has_ended(watcher):
    process = subprocess.Popen(["true"])
    process.wait(30)
    ended = threading.Event()
    watcher.watch(process.pid, ended.set)
    assert ended.wait(30)


def test_a_function_is_called_as_often_as_it_asks_for(watcher):
    left, over = [0.0, 0.001, 0.0, None], threading.Event()

    def look():
        seconds = left.pop(0)
        if not left:
            over.set()
        return seconds

    watcher.call(look)
    assert over.wait(30)


def test_one_that_fails_is_logged_and_holds_up_no_other(watcher, caplog):
    over = threading.Event()

    def fails():
        raise ValueError("broken")

    def ends():
        over.set()

    watcher.call(fails)
    watcher.call(ends)
    assert over.wait(30)
    assert "handling the end of a process failed" in caplog.text


_FORKS = """
import os, subprocess, threading
from stoppable._engine.processes.adopted import watcher

def notices_an_end():
    process, ended = subprocess.Popen(["true"]), threading.Event()
    watcher.watch(process.pid, ended.set)
    seen = ended.wait(30)
    process.wait()
    return seen

assert notices_an_end()
child = os.fork()
if child == 0:
    os._exit(0 if notices_an_end() else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_it_begins_anew_in_a_fork():
    subprocess.run([sys.executable, "-W", "ignore", "-c", _FORKS], check=True, timeout=60)


def test_a_family_is_who_was_added_with_what_they_started_and_who_bears_the_cookie():
    cookie = new_id()
    family = Family(cookie)
    parent = subprocess.Popen(["sh", "-c", "env -i sleep 60 & wait"])
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, table.GROUPS: cookie})
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        assert family.add(parent.pid)
        wait_until(lambda: len(family.find()) == 3)
        assert {parent.pid, other.pid} < set(family.find())
        assert stranger.pid not in family.find()
        found, struck = family.strike(signal.SIGTERM)
        assert len(found) == len(struck) == 3
        assert (parent.wait(30), other.wait(30)) == (-signal.SIGTERM, -signal.SIGTERM)
        wait_until(lambda: not family.find())
        assert stranger.poll() is None
    finally:
        for process in (parent, other, stranger):
            process.kill()
            process.wait(30)


def test_a_process_that_is_gone_cannot_be_added():
    process = subprocess.Popen(["true"])
    process.wait(30)
    assert not Family(new_id()).add(process.pid)

"""A search that finds no process is a proof only if none can have slipped through."""

import os
import signal
import subprocess
import sys

import pytest
from tests.waiting import wait_until

from stoppable._core.values import new_id
from stoppable._engine.processes import table
from stoppable._engine.processes.adopted import Family


class Chain:
    """Processes of a group of which one is always alive: each is started before the one before it ends."""

    def __init__(self, cookie):
        self._env = {**os.environ, table.GROUPS: cookie}
        self.links = []
        self.go_on()

    def go_on(self, *, reap=True):
        self.links.append(subprocess.Popen(["sleep", "60"], env=self._env))
        for link in self.links[:-1]:
            os.kill(link.pid, signal.SIGKILL)
            os.waitid(os.P_PID, link.pid, os.WEXITED | os.WNOWAIT)
            if reap:
                link.wait(30)
        if reap:
            del self.links[:-1]

    def end(self):
        for link in self.links:
            link.kill()
            link.wait(30)


@pytest.fixture
def members():
    return table.Members(new_id())


@pytest.fixture
def chain(members):
    chain = Chain(members._cookie.decode())
    yield chain
    chain.end()


def after_each_listing(monkeypatch, happens, among=None):
    """Let something happen whenever the processes have been listed, and before the first is looked at."""
    listed = table.list_pids

    def listed_and_then():
        pids = listed()
        happens()
        return [pid for pid in pids if among is None or pid in among]

    monkeypatch.setattr(table, "list_pids", listed_and_then)


@pytest.mark.parametrize("reap", [True, False], ids=["gone", "zombies"])
def test_a_chain_that_goes_on_after_each_listing_is_not_proven_dead(members, chain, monkeypatch, reap):
    with monkeypatch.context() as patched:
        after_each_listing(patched, lambda: chain.go_on(reap=reap))
        for _ in range(3):
            assert members.pids() == []
            assert not members.is_gone
    assert members.pids() == [chain.links[-1].pid]
    assert not members.is_gone
    chain.end()
    assert members.pids() == []
    wait_until(lambda: members.pids() == [] and members.is_gone)


@pytest.mark.parametrize("reap", [True, False], ids=["gone", "zombies"])
def test_a_chain_that_goes_on_after_each_listing_is_chased_by_a_kill(members, chain, monkeypatch, reap):
    """No search finds it; the newest pid alone leads to it."""
    last_pid = table.last_pid

    def last_pid_of_the_chain():
        chain.go_on(reap=reap)
        return last_pid()

    with monkeypatch.context() as patched:
        after_each_listing(patched, lambda: chain.go_on(reap=reap))
        patched.setattr(table, "last_pid", last_pid_of_the_chain)
        assert members.pids() == []
        assert next(members.each_for_kill()) == chain.links[-1].pid
        assert not members.is_gone


def test_processes_that_were_there_before_are_killed_without_a_chase(members, chain, monkeypatch):
    """One that hangs in the kernel, for example, would be chased for ever."""
    monkeypatch.setattr(members.__class__, "_chase", None)  # calling it fails
    assert members.pids() == [chain.links[-1].pid]
    assert list(members.each_for_kill()) == [chain.links[-1].pid]


def test_strangers_that_end_after_each_listing_are_in_nobodys_way(members, monkeypatch):
    many = "for n in 1 2 3 4 5 6 7 8 9 10; do sleep 60 & echo $!; done; wait"
    with subprocess.Popen(["sh", "-c", many], stdout=subprocess.PIPE) as parent:
        others = [int(parent.stdout.readline()) for _ in range(10)]
        wait_until(lambda: all(table.name(pid) == "sleep" for pid in others))

        def end_one():
            pid = others.pop()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not table.is_running(pid, since[pid]))

        since = {pid: table.start_time(pid) for pid in others}
        with monkeypatch.context() as patched:
            after_each_listing(patched, end_one, among={*others, parent.pid, os.getpid(), *table.ancestors()})
            assert members.pids() == []
        assert members.is_gone
        for pid in others:
            os.kill(pid, signal.SIGKILL)


def test_a_search_in_which_the_pids_start_again_is_no_proof(members, monkeypatch):
    newest = iter(range(1000, 0, -1))
    with monkeypatch.context() as patched:
        patched.setattr(table, "last_pid", lambda: next(newest))
        assert members.pids() == []
        assert not members.is_gone
    wait_until(lambda: members.pids() == [] and members.is_gone)


def test_a_process_in_an_exec_shows_no_environment_and_is_not_taken_for_another(members, chain, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(table, "environ", lambda _pid: b"")  # a fake: the moment is too short to be met
        assert members.pids() == []
        assert not members.is_gone
    assert members.pids() == [chain.links[-1].pid]


def test_a_process_that_has_no_environment_is_no_member_and_in_nobodys_way(members):
    with subprocess.Popen(["sleep", "60"], env={}) as bare:
        wait_until(lambda: members.pids() == [] and members.is_gone)
        bare.kill()


def test_what_ends_between_two_looks_at_it_is_no_proof(members, chain, monkeypatch):
    environ = table.environ

    def gone(pid):
        if pid == chain.links[-1].pid:
            raise ProcessLookupError
        return environ(pid)

    with monkeypatch.context() as patched:
        patched.setattr(table, "environ", gone)
        assert members.pids() == []
        assert not members.is_gone


def test_the_environment_of_a_process_is_read_once(members, monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as other:
        wait_until(lambda: members.pids() == [] and members.is_gone)
        read, environ = [], table.environ
        monkeypatch.setattr(table, "environ", lambda pid: (read.append(pid), environ(pid))[1])
        members.pids()
        assert other.pid not in read
        other.kill()


def test_a_process_that_was_started_before_the_group_is_not_read_at_all(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as other:
        wait_until(lambda: table.look_at(other.pid).name == "sleep")
        ticks = int(table.start_time(other.pid))
        wait_until(lambda: int(table.boot_clock() * table._TICKS) > ticks + 2)
        read, environ = [], table.environ
        monkeypatch.setattr(table, "environ", lambda pid: (read.append(pid), environ(pid))[1])
        table.Members(new_id()).pids()
        assert other.pid not in read
        other.kill()


def test_a_child_without_the_cookie_is_ended_though_its_parent_dies_first():
    """The child has no cookie, and a KILL that hits its parent first makes it an orphan."""
    family = Family(new_id())
    parent = subprocess.Popen(
        ["sh", "-c", "env -i setsid sleep 60 & echo $!; wait"],
        env={**os.environ, table.GROUPS: family._cookie.decode()},
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(parent.stdout.readline())
    wait_until(lambda: table.name(child) == "sleep")
    since = table.start_time(child)
    with parent:
        signal_one = family.signal
        order = []

        def parent_first(pid, signum):
            for one in sorted({parent.pid, pid}):
                order.append(one)
                signal_one(one, signum)
            return True

        type(family).signal, plain = lambda _self, pid, signum: parent_first(pid, signum), type(family).signal
        try:
            family.strike(signal.SIGKILL)
        finally:
            type(family).signal = plain
        assert order[0] == parent.pid
    wait_until(lambda: not table.is_running(child, since))


def test_a_signal_that_was_not_sent_is_said(members, chain):
    assert not members.signal(chain.links[-1].pid, signal.SIGTERM)  # not found yet
    members.pids()
    assert members.signal(chain.links[-1].pid, signal.SIGTERM)
    chain.links[-1].wait(30)
    assert not members.signal(chain.links[-1].pid, signal.SIGTERM)


_HANDOVERS = """
import sys, threading, time
from stoppable._engine.processes import table

members = table.Members("x" * 32)
members.pids()
over = False

def compute():
    while not over:
        sum(range(1000))

for _ in range(4):
    threading.Thread(target=compute).start()
began = time.monotonic()
for _ in range(3):
    members.pids()
print(time.monotonic() - began)
over = True
"""


def test_a_search_beside_busy_threads_does_not_wait_for_each_process():
    """Each of the hundreds of calls would wait 5 ms or more for the interpreter, if it gave the interpreter away."""
    done = subprocess.run([sys.executable, "-c", _HANDOVERS], capture_output=True, text=True, timeout=120, check=True)
    assert float(done.stdout) < 0.005 * 3 * len(table.list_pids()) * 3  # at three calls for each process

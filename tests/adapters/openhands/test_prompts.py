"""A shell that waits for a line is told apart from one that executes a builtin, which has no process of its own."""

import os
import pty
import signal
import subprocess

import pytest
from tests.waiting import wait_until

from stoppable.adapters.openhands.terminals import in_front, is_at_prompt

DEADLINE = 60


@pytest.fixture
def shell():
    terminal, end = pty.openpty()
    command = ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"]
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
    os.close(end)
    yield process.pid, lambda line: os.write(terminal, f"{line}\n".encode())
    process.kill()
    process.wait(DEADLINE)
    os.close(terminal)


@pytest.mark.parametrize("builtin", ["read answer", "while true; do :; done"])
def test_a_shell_is_at_its_prompt_unless_it_executes_something(shell, builtin, tmp_path):
    pid, write = shell
    wait_until(lambda: is_at_prompt(pid), DEADLINE)
    write(f"echo > {tmp_path}/begun; {builtin}")
    wait_until((tmp_path / "begun").exists, DEADLINE)
    assert not is_at_prompt(pid)
    assert in_front(pid) is None
    os.kill(pid, signal.SIGINT)
    wait_until(lambda: is_at_prompt(pid), DEADLINE)
    write("sleep 600")
    wait_until(lambda: in_front(pid) is not None, DEADLINE)
    assert not is_at_prompt(pid)


def test_a_process_without_a_terminal_is_at_no_prompt():
    assert not is_at_prompt(2**22 + 1)

"""The command as programs call it: pipes, signals, a missing extra."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time

import pytest

from stoppable import sync
from stoppable._extras import pip_install
from stoppable.cli.exits import Exit

from ..waiting import wait_until
from .terminal import DEADLINE, TESTS


def command(*arguments, environment=(), stderr=subprocess.PIPE, **options):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("STOPPABLE", "COVERAGE"))}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=TESTS,
        env={**variables, **dict(environment)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,
    )


def ended(process):
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out, err


def test_a_result_goes_to_a_pipe_untouched_and_all_else_beside_it():
    code, out, err = ended(command("-m", "stoppable", "run", "served_agents:echo", '"\\u001b[1m"'))
    assert (code, out) == (0, "\x1b[1m\n")
    assert "completed" in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_the_encoding_of_the_output_does_not_have_is_told_in_another_way(encoding, options):
    arguments = ["-m", "stoppable", "run", "served_agents:echo", '"\u2713 done"', *options]
    code, out, err = ended(command(*arguments, environment={"PYTHONIOENCODING": encoding}))
    assert code == 0, err
    assert "\\u2713 done" in out
    assert "Traceback" not in err


def test_what_a_generator_yields_is_printed_as_it_comes():
    code, out, err = ended(command("-m", "stoppable", "run", "served_agents:yielding"))
    assert (code, out) == (0, "word 0 word 1 word 2 \n")
    assert "completed" in err


def test_a_generator_is_stopped_when_nobody_reads_what_it_yields():
    process = command("-m", "stoppable", "run", "served_agents:endless")
    try:
        assert process.stdout.readline() == "again\n"
        process.stdout.close()
        assert process.wait(DEADLINE) == Exit.STOPPED
    finally:
        process.kill()
    with process.stderr:
        err = process.stderr.read()
    assert "stopped" in err
    assert "its output was closed" in err
    assert "Traceback" not in err


def test_all_that_a_generator_yielded_is_printed_however_slowly_it_is_read():
    process = command("-m", "stoppable", "run", "served_agents:counting", "30000", stderr=subprocess.DEVNULL)
    try:
        first = process.stdout.readline()
        time.sleep(1.5)  # the generator has long ended
        assert first + process.stdout.read() == "".join(f"{number}\n" for number in range(30_000))
        assert process.wait(DEADLINE) == Exit.DONE
    finally:
        process.kill()
        process.stdout.close()


def test_ctrl_c_is_heard_while_nobody_takes_what_a_generator_yields(tmp_path):
    said = tmp_path / "said"
    with said.open("w") as stderr:
        process = command("-m", "stoppable", "run", "served_agents:flood", stderr=stderr, preexec_fn=hear_interrupts)
    try:
        full = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ) - os.sysconf("SC_PAGESIZE")
        wait_until(lambda: waiting_in(process.stdout) > full, within=DEADLINE)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == Exit.INTERRUPTED
    finally:
        process.kill()
        process.stdout.close()
    assert "■ stopped" in said.read_text()


def hear_interrupts():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores them in what it runs in the background


def waiting_in(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_an_interrupt_without_a_terminal_is_a_stop_too():
    process = command("-m", "stoppable", "run", "served_agents:talker", '{"count": 10000, "pause": 0.1}')
    for line in process.stderr:
        if "told number=1" in line:
            break
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "Ctrl-C again cuts off" in line:
            break
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130
    assert out == ""
    assert "■ stopped" in err


@pytest.mark.parametrize("agent", ["waiting", "impatient"])
def test_ctrl_c_as_soon_as_it_runs_and_too_often_does_not_cost_the_receipt(agent):
    process = command("-m", "stoppable", "run", f"served_agents:{agent}", preexec_fn=hear_interrupts)
    assert process.stderr.readline().startswith("running ")
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert "■ stopped" in err
    assert "Traceback" not in err
    assert code in {Exit.INTERRUPTED, -signal.SIGINT}  # the last of many may be heard by the system


def test_json_is_all_that_is_printed():
    code, out, err = ended(command("-m", "stoppable", "run", "served_agents:failing", "--json"))
    assert code == 1
    assert json.loads(out)["outcome"]["error"]["type"] == "ValueError"
    assert err == ""


def test_what_an_agent_prints_stays_out_of_its_json():
    code, out, err = ended(command("-m", "stoppable", "run", "served_agents:printing", '{"count": 2}', "--json"))
    assert code == 0
    assert json.loads(out)["status"] == "completed"
    assert err == "printed 0\nprinted 1\n"


def test_output_that_cannot_be_written_is_one_sentence():
    script = f"exec {sys.executable} -m stoppable run served_agents:echo 7 $0 >/dev/full"
    for option in ("", "--json"):
        done = subprocess.run(["bash", "-c", script.replace("$0", option)], cwd=TESTS, capture_output=True, check=False)
        assert done.returncode == 1
        *_, last = done.stderr.decode().splitlines()
        assert last == "error: the output could not be written: No space left on device"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_it_runs_without_one_of_its_three_streams_and_gives_its_number_to_nothing_else(closed, tmp_path):
    store = f"sqlite:///{tmp_path}/runs.db"
    script = f"exec {sys.executable} -m stoppable run served_agents:hostile --store {store} {closed}"
    done = subprocess.run(["bash", "-c", script], cwd=TESTS, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"Traceback") <= 1  # the agent's
    assert b"stoppable/cli" not in done.stderr
    with sync.Supervisor(store) as supervisor:
        [record] = supervisor.list().runs
        assert record.error.startswith("RuntimeError: ")


def test_without_its_extra_the_command_is_one_clear_sentence():
    script = "import sys; sys.modules['typer'] = None; from stoppable.cli import main; main()"
    code, out, err = ended(command("-c", script, "--version"))
    assert (code, out) == (1, "")
    assert err == f"error: the command line needs typer, which is not installed: {pip_install('cli')}\n"

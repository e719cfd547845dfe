"""run_process: what it returns, refuses and leaves behind; real processes throughout."""

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from tests.process_states import is_alive
from tests.waiting import until

from stoppable import InvalidArgument, StoppableError
from stoppable._engine.processes import table
from stoppable._engine.processes.command import CommandNotFound, ProcessFailed, ProcessNotStarted
from stoppable._engine.processes.group import live
from stoppable._engine.processes.process import open_process, open_process_sync, run_process

from .process_tools import ESCAPED, Flags, nothing_left

_nothing_left = pytest.fixture(autouse=True)(nothing_left)

# run_process


async def test_it_returns_what_the_process_wrote_and_how_it_ended():
    result = await run_process(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (result.returncode, result.stdout, result.stderr) == (7, "out\n", "err\n")
    assert result.pid > 0
    assert not result.truncated
    assert not is_alive(result.pid)


async def test_a_shell_command_is_one_text():
    assert (await run_process("echo $((1 + 2))", shell=True)).stdout == "3\n"


async def test_a_signal_is_a_negative_code():
    assert (await run_process("kill -USR1 $$", shell=True)).returncode == -signal.SIGUSR1


@pytest.mark.parametrize("size", [5, 1_000_000])
async def test_input_is_written_while_output_is_read(size):
    """A megabyte both ways: more than both pipes hold."""
    text = "x" * size
    assert (await run_process(["cat"], input=text)).stdout == text
    assert (await run_process(["cat"], input=text.encode(), text=False)).stdout == text.encode()


async def test_input_that_nobody_reads_is_no_error():
    assert (await run_process(["true"], input="x" * 1_000_000)).returncode == 0


async def test_without_input_there_is_nothing_to_read():
    assert (await run_process(["cat"])).stdout == ""


async def test_bytes_are_left_as_they_are_and_text_is_decoded():
    command = ["printf", r"\377caf\303\251"]
    assert (await run_process(command, text=False)).stdout == b"\xffcaf\xc3\xa9"
    assert (await run_process(command)).stdout == "\ufffdcafé"
    assert (await run_process(command, encoding="latin-1")).stdout == "ÿcafÃ©"
    with pytest.raises(UnicodeDecodeError):
        await run_process(command, errors="strict")


async def test_it_runs_where_and_with_what_it_is_told(tmp_path):
    result = await run_process('pwd; echo "$COLOUR"', shell=True, cwd=tmp_path, env={"COLOUR": "blue"})
    assert result.stdout == f"{tmp_path}\nblue\n"


async def test_it_runs_in_a_session_of_its_own():
    result = await run_process([sys.executable, "-c", "import os; print(os.getsid(0), os.getpgid(0), os.getpid())"])
    assert result.stdout == f"{result.pid} {result.pid} {result.pid}\n"


async def test_check_raises_with_the_result_and_the_end_of_what_it_said():
    with pytest.raises(ProcessFailed, match=r"'sh' exited with 3: broken pipe of dreams") as caught:
        await run_process(["sh", "-c", "echo kept; echo broken pipe of dreams >&2; exit 3"], check=True)
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, subprocess.CalledProcessError)
    assert (error.returncode, error.result.stdout, error.output) == (3, "kept\n", "kept\n")
    with pytest.raises(ProcessFailed, match=r"'sh' was ended by signal 15$"):
        await run_process(["sh", "-c", "kill $$"], check=True, text=False)
    assert (await run_process(["true"], check=True)).returncode == 0


async def test_output_over_the_limit_is_dropped_and_said_so():
    result = await run_process("head -c 3000000 /dev/zero; echo short >&2", shell=True, output_limit=1000)
    assert (len(result.stdout), result.stderr, result.truncated, result.returncode) == (1000, "short\n", True, 0)
    exact = await run_process(["printf", "12345"], output_limit=5)
    assert (exact.stdout, exact.truncated) == ("12345", False)


async def test_what_it_left_in_the_background_is_ended_with_it():
    """The child holds neither pipe, so nothing but its group ties it to the command."""
    result = await run_process("sleep 1000 > /dev/null 2>&1 & echo $!", shell=True)
    assert not is_alive(int(result.stdout))


async def test_what_a_background_child_writes_within_a_second_is_kept(clock):
    """The clock stands still: however long the child takes, the second is not over."""
    result = await run_process("(sleep 0.2; echo late) & echo early", shell=True)
    assert result.stdout == "early\nlate\n"


async def test_a_pipe_held_by_one_that_escaped_and_hid_does_not_hang():
    """Its own session and an empty environment: nobody finds it (N6), and it keeps stdout open."""
    started = time.monotonic()
    result = await run_process("setsid env -i sleep 1000 & echo $!; echo out", shell=True)
    pid, out = result.stdout.splitlines()
    assert out == "out"
    assert 0.9 < time.monotonic() - started < 30
    os.kill(int(pid), signal.SIGKILL)


async def test_many_at_once():
    results = await asyncio.gather(*(run_process(["echo", str(n)]) for n in range(30)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(30)]


async def test_the_loop_goes_on_while_a_process_starts_and_runs(tmp_path):
    flags = Flags(tmp_path)

    async def beat():
        for _ in range(20):
            await asyncio.sleep(0.001)
        flags.raise_("go")

    beating = asyncio.create_task(beat())
    assert (await run_process(flags.wait("go"), shell=True)).returncode == 0
    assert beating.done()


# Refusals


@pytest.mark.parametrize("run", [run_process, open_process])
async def test_a_command_that_does_not_exist_says_what_to_do(run):
    with pytest.raises(CommandNotFound, match="command 'no-such-tool' was not found: install it") as caught:
        await run(["no-such-tool", "x"])
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, StoppableError)


async def test_what_cannot_be_started_says_why(tmp_path):
    with pytest.raises(ProcessNotStarted, match="pass the path of a directory"):
        await run_process(["true"], cwd=tmp_path / "missing")
    with pytest.raises(ProcessNotStarted, match="Permission denied"):
        await run_process([tmp_path])
    with pytest.raises(InvalidArgument, match="embedded null byte"):
        await run_process(["echo", "a\0b"])


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("ls -l", {}, "pass a list of arguments, or shell=True"),
        (["ls"], {"shell": True}, "with shell=True pass one string"),
        ("  ", {"shell": True}, "with shell=True pass one string"),
        ([], {}, "the program first"),
        ([""], {}, "the program first"),
        ([b"ls"], {}, "strings and paths"),
        (["ls", 1], {}, "strings and paths"),
        (5, {}, "strings and paths"),
        (["ls"], {"env": {"A": 1}}, "env has a name or a value that is not text"),
        (["ls"], {"output_limit": -1}, "output_limit is -1"),
        (["ls"], {"output_limit": True}, "output_limit is True"),
        (["ls"], {"encoding": "klingon"}, "unknown encoding: klingon"),
        (["ls"], {"errors": "panic"}, "unknown error handler name 'panic'"),
        (["ls"], {"input": "text", "text": False}, "pass bytes"),
        (["ls"], {"input": 5}, "pass text or bytes"),
    ],
)
async def test_arguments_that_make_no_sense_are_refused(command, options, message):
    with pytest.raises(InvalidArgument, match=message):
        await run_process(command, **options)


async def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="colour"):
        await run_process(["true"], colour="blue")


# A host process that ends

# Where the tests run in the background, SIGINT is ignored, and every process they start inherits that.
HOST = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from stoppable._engine.processes.process import open_process_sync, run_process_sync
command = "trap '' %s; echo $$ > {path}.new; mv {path}.new {path}; echo $$; while :; do sleep 0.01; done"
"""


@contextmanager
def host(code, path, signals="INT"):
    """Run a Python that starts a shell; yields both once the shell runs."""
    script = HOST.replace("%s", signals).replace("{path}", str(path)) + code
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 30
            while not path.exists():
                assert time.monotonic() < deadline
                time.sleep(0.005)
            yield process, int(path.read_text())
        finally:
            process.kill()


def test_ctrl_c_in_a_blocking_wait_ends_the_group(tmp_path):
    with host("run_process_sync(command, shell=True)", tmp_path / "pid") as (process, pid):
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=30)[1]
        assert not is_alive(pid)


@pytest.mark.parametrize("signals", ["INT", "TERM"])
def test_an_interpreter_that_exits_ends_what_it_left_open(tmp_path, signals):
    code = "process = open_process_sync(command, shell=True); process.stdout.readline()"
    with host(code, tmp_path / "pid", signals) as (process, pid):
        assert process.communicate(timeout=30)[1] == b""
        assert not is_alive(pid)


def test_a_forked_child_leaves_the_processes_of_its_parent_alone():
    with open_process_sync(["cat"]) as process:
        pid = os.fork()
        if pid == 0:
            os._exit(len(live))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        process.stdin.write("alive\n")
        assert process.stdout.readline() == "alive\n"


# Outside a run


async def test_outside_a_run_somebodys_cancel_passes_at_once_and_the_group_is_ended():
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await run_process("sleep 1000 & sleep 1000", shell=True)
    assert time.monotonic() - started < 20
    await until(lambda: not live)


async def test_outside_a_run_one_that_ignores_term_is_killed_after_five_seconds(clock):
    async with await open_process("trap '' TERM; echo ready; while :; do sleep 0.01; done", shell=True) as process:
        await process.stdout.readline()
        leaving = asyncio.create_task(process.aclose())
        await until(lambda: next(iter(live))._timers)  # TERM was sent, and the KILL after it is set
        clock.advance(4.9)
        await asyncio.sleep(0.05)
        assert is_alive(process.pid)
        clock.advance(0.2)
        await leaving
    assert process.returncode == -signal.SIGKILL


async def test_a_task_that_is_cancelled_while_a_process_starts_leaves_nothing():
    for pause in (0, 0, 0.0005, 0.001, 0.002):
        for start in (run_process, open_process):
            task = asyncio.create_task(start(["sleep", "1000"]))
            await asyncio.sleep(pause)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                process = await task
                await process.aclose()
                raise asyncio.CancelledError
    await until(lambda: not live)


def test_the_cookies_of_a_nested_program_are_kept(monkeypatch):
    monkeypatch.setenv(table.GROUPS, "outer")
    monkeypatch.setenv(table.RUN, "outer-run")
    env = table.environment(None, None, "inner", "starter")
    assert (env[table.GROUPS], env[table.RUN]) == ("outer:inner", "outer-run")
    assert table.environment({}, "run", "inner", "starter") == {
        "STOPPABLE_RUN": "run",
        "STOPPABLE_WORKER": "starter",
        "STOPPABLE_GROUPS": "outer:inner",
    }


# Other systems


@pytest.mark.parametrize("missing", ["pidfd_open", "waitid"])
async def test_it_works_without_newer_system_calls(monkeypatch, missing):
    monkeypatch.delattr(os, missing)
    assert (await run_process("echo out; exit 3", shell=True)).returncode == 3
    async with await open_process(f"{ESCAPED} & sleep 1000", shell=True) as process:
        escaped = int(await process.stdout.readline())
    assert not is_alive(process.pid)
    assert not is_alive(escaped)


async def test_without_proc_the_group_is_still_ended(monkeypatch):
    monkeypatch.setattr(table, "PROC", "/nonexistent")
    async with await open_process("sleep 1000 & echo $!; wait", shell=True) as process:
        child = int(await process.stdout.readline())
    await until(lambda: not is_alive(process.pid) and not is_alive(child))
    result = await run_process("trap '' TERM; sleep 1000 > /dev/null 2>&1 & echo $!", shell=True)
    await until(lambda: not is_alive(int(result.stdout)))


async def test_a_child_that_somebody_else_reaped_has_an_unknown_code():
    """Here the system does: SIGCHLD is ignored."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        async with await open_process(f"{ESCAPED} &", shell=True) as process:
            escaped = int(await process.stdout.readline())
            assert await process.wait() == 255
        await until(lambda: not is_alive(escaped))
    finally:
        signal.signal(signal.SIGCHLD, previous)


async def test_a_group_that_cannot_be_kept_is_killed(monkeypatch, caplog):
    async with await open_process("sleep 1000 & cat; wait", shell=True) as process:

        def feed(_data):
            raise MemoryError

        monkeypatch.setattr(process._stdout._incoming, "feed", feed)
        with contextlib.suppress(BrokenPipeError):  # it may be killed before the write has returned
            await process.stdin.write("x\n")
        with pytest.raises(MemoryError):
            await process.wait()
    assert process.returncode == -signal.SIGKILL
    assert "could not be tracked" in caplog.text

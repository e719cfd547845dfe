"""open_process: talking to a process, from tasks and from threads; and the blocking twins."""

import asyncio
import signal
import subprocess

import pytest
from tests.process_states import is_alive

from stoppable import InvalidArgument
from stoppable._engine.processes.command import CommandNotFound
from stoppable._engine.processes.process import open_process, open_process_sync, run_process_sync

from .process_tools import ESCAPED, nothing_left

_nothing_left = pytest.fixture(autouse=True)(nothing_left)

# open_process


async def test_one_can_talk_to_an_open_process():
    async with await open_process(["cat"]) as process:
        for word in ("one", "two"):
            await process.stdin.write(f"{word}\n")
            assert await process.stdout.readline() == f"{word}\n"
        assert process.returncode is None
        assert repr(process) == f"<Process cat {process.pid} None>"
        process.stdin.close()
        assert await process.wait() == 0
        assert await process.stdout.readline() == ""
        with pytest.raises(BrokenPipeError):
            await process.stdin.write("three\n")


async def test_leaving_the_block_ends_the_group():
    async with await open_process("sleep 1000 & echo $!; wait", shell=True) as process:
        child = int(await process.stdout.readline())
    assert process.returncode == -signal.SIGTERM
    assert not is_alive(process.pid)
    assert not is_alive(child)


async def test_an_error_in_the_block_ends_the_group_and_passes():
    with pytest.raises(ValueError, match="mine"):
        async with await open_process(["sleep", "1000"]) as process:
            raise ValueError("mine")
    assert not is_alive(process.pid)


async def test_a_daemon_of_an_open_process_lives_until_the_block_is_left():
    async with await open_process(f"{ESCAPED} &", shell=True) as process:
        daemon = int(await process.stdout.readline())
        assert await process.wait() == 0
        assert await process.stdout.read() == ""
        assert is_alive(daemon)
    assert not is_alive(daemon)


async def test_lines_are_iterated_and_a_last_one_without_newline_is_kept():
    async with await open_process(["printf", r"one\ntwo\nthree"]) as process:
        assert [line async for line in process.stdout] == ["one\n", "two\n", "three"]


async def test_a_character_cut_in_two_is_put_together():
    async with await open_process(["printf", r"é\303\251\303"]) as process:
        assert await process.stdout.read(0) == ""
        pieces = []
        while piece := await process.stdout.read(1):
            pieces.append(piece)
        assert pieces == ["é", "é", "\ufffd"]


async def test_bytes_can_be_read_and_written():
    async with await open_process(["cat"], text=False) as process:
        await process.stdin.write(b"\xff\n")
        process.stdin.close()
        assert await process.stdout.read() == b"\xff\n"
        with pytest.raises(InvalidArgument, match="pass bytes"):
            await process.stdin.write("text")


async def test_a_process_waits_for_a_slow_reader_and_loses_nothing():
    """It writes 1 MB and ends while the reader has taken one line: what is in the pipe is kept."""
    async with await open_process("seq 100000; echo done >&2", shell=True) as process:
        assert await process.stdout.readline() == "1\n"
        with pytest.raises(TimeoutError):  # it waits at a full pipe
            async with asyncio.timeout(0.05):
                await process.stderr.readline()
        lines = [line async for line in process.stdout]
        assert (len(lines), lines[-1]) == (99_999, "100000\n")
        assert await process.stderr.read() == "done\n"


async def test_a_writer_waits_for_a_slow_process():
    async with await open_process("sleep 0.1; wc -c", shell=True) as process:
        for _ in range(10):
            await process.stdin.write("x" * 100_000)
        process.stdin.close()
        assert await process.stdout.read() == "1000000\n"


async def test_a_writer_sees_that_the_process_ended():
    async with await open_process(["true"]) as process:
        with pytest.raises(BrokenPipeError, match="cannot write to the process"):
            while True:
                await process.stdin.write("x" * 300_000)


async def test_a_very_long_line_comes_in_pieces():
    async with await open_process("head -c 600000 /dev/zero; echo", shell=True) as process:
        pieces = [piece async for piece in process.stdout]
        assert len(pieces) > 1
        assert len("".join(pieces)) == 600_001


async def test_streams_can_be_redirected(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        async with await open_process(
            "echo out; echo err >&2", shell=True, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        ) as process:
            assert await process.wait() == 0
            for name in ("stdin", "stdout", "stderr"):
                with pytest.raises(InvalidArgument, match=f"{name} of this process is not a pipe"):
                    getattr(process, name)
    assert (tmp_path / "log").read_text() == "out\nerr\n"


async def test_lines_of_a_wide_encoding_are_refused():
    with pytest.raises(InvalidArgument, match="use text=False"):
        await open_process(["cat"], encoding="utf-16")


async def test_a_signal_goes_to_the_whole_group():
    command = (
        "trap : USR1; (trap 'echo child; exit' USR1; echo ready; while :; do sleep 0.01; done) & wait; echo leader"
    )
    async with await open_process(command, shell=True, name="pair") as process:
        assert await process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert sorted((await process.stdout.read()).split()) == ["child", "leader"]
        await process.wait()
        process.send_signal(signal.SIGINT)  # too late, and no error


@pytest.mark.parametrize("signum", ["SIGINT", None, -1, 1000, 1 << 40])
async def test_what_is_no_signal_is_refused_and_leaves_the_process_alone(signum):
    async with await open_process(["cat"]) as process:
        with pytest.raises(InvalidArgument, match="is not a signal"):
            process.send_signal(signum)
        await process.stdin.write("alive\n")
        assert await process.stdout.readline() == "alive\n"


async def test_it_can_be_closed_without_a_block():
    process = await open_process(["sleep", "1000"])
    await process.aclose()
    assert not is_alive(process.pid)
    await process.aclose()


# Blocking twins


def test_the_blocking_twin_of_run_process():
    result = run_process_sync(["sh", "-c", "cat; exit 4"], input="text")
    assert (result.returncode, result.stdout) == (4, "text")
    assert run_process_sync(["printf", "x"], text=False).stdout == b"x"
    with pytest.raises(CommandNotFound):
        run_process_sync(["no-such-tool"])


def test_the_blocking_twin_of_open_process():
    with open_process_sync("cat; echo err >&2", shell=True) as process:
        process.stdin.write("one\n")
        assert process.stdout.readline() == "one\n"
        process.stdin.write("two\nthree\n")
        process.stdin.close()
        assert list(process.stdout) == ["two\n", "three\n"]
        assert process.stderr.read() == "err\n"
        assert process.wait() == process.returncode == 0
        assert repr(process) == f"<BlockingProcess cat {process.pid} 0>"
        process.send_signal(signal.SIGINT)
    process = open_process_sync(["sleep", "1000"])
    process.close()
    assert not is_alive(process.pid)

"""Hooks that are due are called, although the process that called the agent ends at once."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = """
    import asyncio, contextlib, sys
    import stoppable, worker_agents

    async def main():
        handle = await stoppable.spawn(getattr(worker_agents, sys.argv[1]), sys.argv[2], isolation=sys.argv[3])
        with contextlib.suppress(stoppable.RunStopped):
            async for _ in handle.stream():  # it has registered its hooks
                await handle.stop({mode!r})
        return await handle.outcome()

    if __name__ == "__main__":
        print(asyncio.run(main()).status)
"""


def ended(*command):
    process = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=60, check=False)
    assert process.stderr == ""
    return process.stdout


@pytest.mark.parametrize("isolation", ["auto", "process"])
@pytest.mark.parametrize("mode", ["graceful", "immediate"])
def test_hooks_that_are_due_are_called_before_a_script_ends(tmp_path, isolation, mode):
    script = textwrap.dedent(SCRIPT.format(mode=mode))
    assert ended(sys.executable, "-c", script, "with_slow_hooks", str(tmp_path), isolation) == "stopped\n"
    assert {path.name for path in tmp_path.iterdir()} == {"stopped", "ended"}


@pytest.mark.parametrize("isolation", ["auto", "process"])
def test_a_hook_that_hangs_does_not_keep_a_script_from_ending(tmp_path, isolation):
    script = textwrap.dedent(SCRIPT.format(mode="graceful"))
    assert ended(sys.executable, "-c", script, "with_a_hook_that_hangs", str(tmp_path), isolation) == "stopped\n"
    assert (tmp_path / "called").exists()


LIMITED = """
    import asyncio, contextlib, sys, time
    from pathlib import Path
    import stoppable.sync
    from stoppable._core import participants

    climb = participants.engine.climb

    def climb_slowly(stop):
        time.sleep(0.3)  # longer than the code below needs to end the process
        climb(stop)

    def job():
        stoppable.on_stop(Path(sys.argv[1], "stopped").touch)
        while not stoppable.should_stop():
            time.sleep(0.001)

    if __name__ == "__main__":
        participants.engine.climb = climb_slowly
        limits = stoppable.Limits(seconds=0.05)
        with contextlib.suppress(stoppable.RunStopped), stoppable.sync.open_run("job", limits=limits):
            job()
"""


def test_hooks_of_a_stop_that_another_thread_makes_are_called_though_the_process_ends_first(tmp_path):
    assert ended(sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path)) == ""
    assert (tmp_path / "stopped").exists()

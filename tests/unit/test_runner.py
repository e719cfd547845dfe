"""run(): the blocking runner, with Ctrl-C pressed in a real process."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from tests.waiting import until, wait_until

import stoppable


def test_it_runs_agents_of_every_kind():
    async def asynchronous(x):
        return x + 1

    def blocking(x):
        assert stoppable.current_run().name == "blocking"
        return x + 2

    assert stoppable.run(asynchronous, 1) == 2
    assert stoppable.run(blocking, 1) == 3


def test_it_raises_run_failed():
    async def broken():
        raise ValueError("own")

    with pytest.raises(stoppable.RunFailed) as caught:
        stoppable.run(broken)
    assert isinstance(caught.value.__cause__, ValueError)


async def test_inside_a_run_it_makes_a_child_that_is_stopped_with_it():
    inner = []

    async def helper():
        inner.append(stoppable.current_run())
        await stoppable.sleep(60)

    def agent():
        stoppable.run(helper)

    handle = await stoppable.spawn(agent)
    await until(lambda: inner)
    await handle.stop("cooperative")
    assert (await handle.outcome()).status == "stopped"
    assert (inner[0].status, inner[0].parent) == ("stopped", handle.run)


async def test_it_is_refused_inside_a_loop():
    with pytest.raises(stoppable.StoppableError, match=r"stoppable\.call"):
        stoppable.run(lambda: None)


def test_it_does_not_wait_for_a_generator_that_cannot_be_closed(monkeypatch):
    monkeypatch.setattr("stoppable._engine.executors._CLOSING_SECONDS", 0.05)  # two seconds would be a slow test
    kept, returned = [], []

    async def never_closed():
        try:
            yield 1
        finally:
            await asyncio.Event().wait()

    async def agent():
        kept.append(never_closed())
        return await anext(kept[0])

    runner = threading.Thread(target=lambda: returned.append(stoppable.run(agent)), daemon=True)
    runner.start()
    runner.join(60)
    assert returned == [1]


def test_it_runs_on_another_thread_without_the_button():
    results = []

    async def agent():
        return "value"

    thread = threading.Thread(target=lambda: results.append(stoppable.run(agent)))
    thread.start()
    thread.join(60)
    assert results == ["value"]


def test_a_press_is_heard_at_once_though_it_does_not_interrupt_the_wait_of_the_loop():
    """As one does that comes just before the loop begins to wait: here another thread gets the signal."""

    async def agent():
        loop_thread = f"/proc/self/task/{threading.get_native_id()}/stat"

        def press():
            wait_until(lambda: Path(loop_thread).read_text().rpartition(")")[2].split()[0] == "S")
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        await stoppable.sleep(40)

    with pytest.raises(stoppable.RunStopped):
        began = time.monotonic()
        stoppable.run(agent)
    assert time.monotonic() - began < 30


SCRIPTS = {
    "polite": """
        async def agent():
            try:
                while True:
                    with stoppable.boundary("llm"):
                        say("calling")
                        await asyncio.sleep(0.3)
                    say("answered")
            finally:
                say("cleaned")
        """,
    "deaf": """
        async def agent():
            try:
                say("calling")
                await asyncio.sleep(60)
            finally:
                say("cleaned")
        """,
    "stubborn": """
        async def agent():
            say("calling")
            while True:
                try:
                    await asyncio.sleep(60)
                except BaseException as error:
                    say(type(error).__name__)
        """,
    "spinning": """
        async def agent():
            say("calling")
            while True:
                pass
        """,
}


@pytest.mark.parametrize(
    ("script", "presses", "expected"),
    [
        ("polite", 1, ["calling", "answered", "cleaned", "RunStopped signal"]),
        ("deaf", 2, ["calling", "cleaned", "RunStopped cancel"]),
        ("stubborn", 3, ["calling", "CancelledError", "KeyboardInterrupt"]),
        ("spinning", 3, ["calling", "KeyboardInterrupt"]),
    ],
)
def test_ctrl_c_climbs_and_is_never_swallowed(script, presses, expected):
    source = (
        textwrap.dedent(
            """
        import asyncio, os, stoppable, threading, time

        def say(text):
            os.write(1, f"{text}\\n".encode())

        def tell_of_presses(token):
            told = 0
            while True:
                if len(token.reasons) > told:
                    told += 1
                    os.write(2, b"pressed\\n")
                time.sleep(0.001)

        async def watched():
            token = stoppable.current_run().token
            threading.Thread(target=tell_of_presses, args=(token,), daemon=True).start()
            await agent()
        """
        )
        + textwrap.dedent(SCRIPTS[script])
        + textwrap.dedent(
            """
        try:
            stoppable.run(watched)
        except stoppable.RunStopped as stopped:
            say(f"RunStopped {stopped.outcome.rung}")
        except KeyboardInterrupt:
            say("KeyboardInterrupt")
            os._exit(0)
        """
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        lines = [process.stdout.readline().strip()]
        for press in range(presses):
            os.kill(process.pid, signal.SIGINT)
            if press < presses - 1:  # two signals at once are one to the system
                assert process.stderr.readline() == "pressed\n"
            if script == "stubborn" and press == 1:
                lines.append(process.stdout.readline().strip())
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
        process.stderr.close()
    lines += output.split("\n")[:-1]
    # The last cancels of a stubborn agent may come before or after the third press.
    assert list(dict.fromkeys(lines)) == expected, errors

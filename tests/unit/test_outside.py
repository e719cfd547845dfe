"""Outside a run everything is harmless."""

import asyncio
import subprocess
import sys
import threading
import warnings

import pytest

import stoppable
from stoppable._core import boundary as boundary_module


async def test_everything_does_nothing_outside_a_run():
    assert stoppable.current_run() is None
    assert not stoppable.should_stop()
    stoppable.check()
    stoppable.set_partial(1)
    stoppable.append_partial(1)
    with stoppable.boundary("tool"), stoppable.shielded(1), stoppable.detached():
        pass
    async with stoppable.boundary("tool"), stoppable.shielded(1), stoppable.detached():
        pass
    with stoppable.on_stop(print), stoppable.on_interrupt(print):
        pass
    stoppable.on_stop(print).remove()
    await stoppable.sleep(0)
    await stoppable.sleep(0.001)
    assert list(stoppable.boundary("llm")(_numbers)()) == [0, 1]
    with stoppable.detached():
        stoppable.check()


def _numbers():
    yield from range(2)


async def test_an_agent_called_outside_a_run_is_a_plain_call():
    @stoppable.agent
    async def double(x: int) -> int:
        assert stoppable.current_run() is None
        return 2 * x

    @stoppable.agent
    def triple(x: int) -> int:
        assert stoppable.current_run() is None
        return 3 * x

    @stoppable.agent
    async def count(n: int):
        for i in range(n):
            yield i

    assert await double(2) == 4
    assert triple(2) == 6
    assert [i async for i in count(3)] == [0, 1, 2]
    assert await stoppable.call(double, 4) == 8
    with pytest.raises(ZeroDivisionError):
        await stoppable.call(_fails)


async def _fails():
    return 1 / 0


async def test_an_async_generator_called_outside_a_run_is_closed_and_spoken_to_as_a_plain_one():
    heard = []

    @stoppable.agent
    async def generator():
        try:
            heard.append((yield 1))
            try:
                yield 2
            except ValueError as error:
                heard.append(str(error))
            yield 3
        finally:
            await asyncio.sleep(0)
            heard.append("cleaned up")

    items = generator()
    assert await anext(items) == 1
    assert await items.asend("sent") == 2
    assert await items.athrow(ValueError("thrown")) == 3
    await items.aclose()
    assert heard == ["sent", "thrown", "cleaned up"]
    assert [item async for item in generator()] == [1, 2, 3]


@pytest.mark.usefixtures("uninstrumented")
@pytest.mark.parametrize("blocking", [True, False])
async def test_a_boundary_on_a_thread_without_context_warns_once_while_runs_are_live(monkeypatch, blocking):
    """That is how lost context shows itself."""
    monkeypatch.setattr(boundary_module, "_warned", False)  # the warning is once per process, the test wants its own
    caught = []

    def lost():
        for _ in range(3):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                with stoppable.boundary("tool", "lost"):
                    pass
            caught.extend(str(warning.message) for warning in seen)

    if blocking:
        handle = await stoppable.spawn(_in_a_bare_thread, lost)
        await handle.result()
    else:
        async with stoppable.open_run("live"):
            thread = threading.Thread(target=lost)
            thread.start()
            while thread.is_alive():
                await asyncio.sleep(0.001)
    assert len(caught) == 1
    assert "stoppable.to_thread()" in caught[0]


@stoppable.boundary("tool", "decorated")
def _decorated():
    pass


def _in_a_block():
    with stoppable.boundary("tool", "block"):
        pass


@pytest.mark.usefixtures("uninstrumented")
@pytest.mark.parametrize("look", [stoppable.check, stoppable.should_stop, _decorated, _in_a_block])
async def test_the_warning_about_a_lost_thread_names_the_line_of_the_user(monkeypatch, look):
    monkeypatch.setattr(boundary_module, "_warned", False)
    caught = []

    def lost():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            look()
        caught.extend(seen)

    await (await stoppable.spawn(_in_a_bare_thread, lost)).result()
    assert [warning.filename for warning in caught] == [__file__]


def _in_a_bare_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(60)


def test_a_boundary_on_a_thread_does_not_warn_without_live_runs():
    threading.Thread(target=stoppable.boundary("tool")(lambda: None)).start()


def test_importing_stoppable_loads_nothing_else():
    code = (
        "import sys; before = set(sys.modules); import stoppable; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - {'stoppable'}; "
        "print(sorted(name for name in new if name not in sys.stdlib_module_names))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert output.stdout.strip() == "[]"


async def test_a_stop_in_a_task_nobody_awaits_prints_no_noise(caplog, capsys):
    import gc

    async def background():
        await stoppable.sleep(60)

    async def agent():
        asyncio.create_task(background()).add_done_callback(lambda task: None)
        await asyncio.sleep(0.01)
        stoppable.check()

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await handle.stop()
    await handle.outcome()
    gc.collect()
    assert caplog.text == ""
    assert capsys.readouterr().err == ""


async def test_another_error_in_a_task_nobody_awaits_is_still_reported(caplog):
    import gc

    async def background():
        with stoppable.boundary("tool"):
            raise ValueError("nobody looked")

    async def agent():
        asyncio.create_task(background())
        await asyncio.sleep(0.01)

    await (await stoppable.spawn(agent)).result()
    gc.collect()
    assert "nobody looked" in caplog.text

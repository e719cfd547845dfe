"""instrument() and uninstrument(), alone and beside others that wrap the same functions."""

import asyncio
import concurrent.futures
import functools
import importlib
import subprocess
import sys
import threading
import types

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine.plain import patches, whose

PLACES = [(threading.Thread, "start"), (concurrent.futures.ThreadPoolExecutor, "submit")]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=str)
def test_it_can_be_called_twice_and_undone(owner, name):
    ours = vars(owner)[name]
    stoppable.instrument()
    assert vars(owner)[name] is ours
    stoppable.uninstrument()
    assert vars(owner)[name] is not ours
    stoppable.uninstrument()


async def test_what_somebody_else_has_wrapped_is_left_and_does_nothing(monkeypatch):
    """As tracing libraries do, which are installed after us and never taken away."""
    ours, seen = threading.Thread.start, []

    @functools.wraps(ours)
    def traced(self):
        seen.append(self.name)
        ours(self)

    monkeypatch.setattr(threading.Thread, "start", traced)
    began, release = threading.Event(), threading.Event()

    def tool():
        began.set()
        release.wait(30)

    async def agent():
        threading.Thread(target=tool, name="traced").start()
        await asyncio.sleep(60)

    async def stopped_status():
        began.clear()
        handle = await stoppable.spawn(agent)
        await until(began.is_set)
        in_flight = (await handle.stop("immediate")).in_flight
        release.set()
        await handle.outcome()
        release.clear()
        return in_flight

    assert await stopped_status() == ("thread:traced",)
    stoppable.uninstrument()
    assert threading.Thread.start is traced
    assert await stopped_status() == ()
    stoppable.instrument()
    assert await stopped_status() == ("thread:traced",)
    assert seen.count("traced") == 3


def test_a_module_that_is_imported_later_is_seen_to(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    patches.when_imported("imported_later", seen.append)
    patches.when_imported("imported_never", seen.append)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("imported_never")
    module = importlib.import_module("imported_later")
    assert seen == [module]
    patches.when_imported("imported_later", seen.append)
    assert seen == [module, module]
    del sys.modules["imported_later"]


def test_a_package_without_a_file_is_imported_as_ever(tmp_path, monkeypatch):
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    patches.when_imported("only_a_folder", lambda module: None)
    assert importlib.import_module("only_a_folder").__path__
    del sys.modules["only_a_folder"]


def test_whose_code_a_function_is():
    made = types.FunctionType(compile("def f(): pass", "<string>", "exec").co_consts[0], {})
    assert whose.is_users(made)  # an agent that comes as text
    assert whose.is_users(lambda: None)
    assert not whose.is_users(subprocess.run)
    assert not whose.is_users(pytest.raises)
    assert not whose.is_users(stoppable.spawn)
    assert not whose.is_users(len)
    assert whose.is_users(importlib.import_module("stoppable.demo.agents").research)


def test_what_wraps_itself_for_ever_is_nobodys():
    endless = functools.partial(lambda: None)
    for _ in range(30):
        endless = types.SimpleNamespace(__wrapped__=endless)
    assert not whose.is_users(endless)
    assert whose.name_of(endless) is None


def test_a_thread_without_a_target_is_nobodys():
    assert not whose.is_users_thread(threading.Thread())

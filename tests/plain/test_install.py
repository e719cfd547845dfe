"""instrument() and uninstrument(), alone and beside others that wrap the same functions."""

import asyncio
import concurrent.futures
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging.handlers
import queue
import subprocess
import sys
import threading
import types

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine.instrumentation import patches, processes, user_code

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
    assert user_code.is_users(made)  # an agent that comes as text
    assert user_code.is_users(lambda: None)
    assert not user_code.is_users(subprocess.run)
    assert not user_code.is_users(pytest.raises)
    assert not user_code.is_users(stoppable.spawn)
    assert not user_code.is_users(len)
    assert user_code.is_users(importlib.import_module("stoppable.demo.agents").research)


def test_what_wraps_itself_for_ever_is_nobodys():
    endless = functools.partial(lambda: None)
    for _ in range(30):
        endless = types.SimpleNamespace(__wrapped__=endless)
    assert not user_code.is_users(endless)
    assert user_code.name_of(endless) is None


def test_a_thread_without_a_target_is_nobodys():
    assert not user_code.is_users_thread(threading.Thread())


class OneLoaderForAll(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads every module of a folder with one object, as zipimport and pytest's rewriting do."""

    def __init__(self, sources):
        self.sources = sources
        self.executed = []

    def find_spec(self, fullname, path, target=None):
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in self.sources else None

    def exec_module(self, module):
        self.executed.append(module.__name__)
        exec(self.sources[module.__name__], vars(module))

    def get_source(self, fullname):
        return self.sources[fullname]


@pytest.fixture
def one_loader(monkeypatch):
    finder = OneLoaderForAll({"wanted_one": "loader_in_module = __spec__.loader", "another_one": ""})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    yield finder
    for name in finder.sources:
        sys.modules.pop(name, None)


def test_a_loader_that_serves_many_modules_is_left_as_it_is(one_loader):
    seen, before = [], vars(one_loader).copy()
    patches.when_imported("wanted_one", seen.append)
    spec = importlib.util.find_spec("wanted_one")
    assert spec.loader.get_source("wanted_one")  # whoever only asks gets all that the loader can do
    wanted = importlib.import_module("wanted_one")
    importlib.import_module("another_one")
    assert seen == [wanted]
    assert one_loader.executed == ["wanted_one", "another_one"]
    assert vars(one_loader).keys() == before.keys()
    assert wanted.loader_in_module is wanted.__loader__ is wanted.__spec__.loader is one_loader


def test_two_hooks_that_ask_all_finders_do_not_ask_each_other_for_ever(one_loader, monkeypatch):
    class Another(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, path, target=None):
            if fullname != "wanted_one":
                return None
            others = [finder for finder in sys.meta_path if finder is not self]
            specs = (finder.find_spec(fullname, path, target) for finder in others)
            return next((spec for spec in specs if spec is not None), None)

    seen = []
    patches.when_imported("wanted_one", seen.append)
    monkeypatch.setattr(sys, "meta_path", [Another(), *sys.meta_path])
    assert seen == [importlib.import_module("wanted_one")]


def test_a_second_call_adds_to_what_is_included_and_spared_and_undoing_forgets_both():
    stoppable.instrument(include=["logging"], spare=["gpg-agent"])
    stoppable.instrument(include=["queue"], spare=["tmux: server"])
    stoppable.instrument()
    assert user_code.is_users(logging.handlers.QueueListener.start)
    assert user_code.is_users(queue.Queue.put)
    assert processes._spared_programs == ("gpg-agent", "tmux: server")
    stoppable.uninstrument()
    stoppable.instrument()
    assert not user_code.is_users(logging.handlers.QueueListener.start)
    assert processes._spared_programs == ()

"""A toy adapter, written from docs/how-to/write-an-adapter.md alone, for a framework with every awkward trait."""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import until

import stoppable
from stoppable import Supervisor
from stoppable._core.boundary import Boundary
from stoppable._engine.handle import RunHandle

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/how-to/write-an-adapter.md").read_text()


class Framework:
    """Callbacks around tools, a token of its own, sub-agents on bare threads, a service, and a helper process."""

    def __init__(self):
        self.callbacks = []
        self.cancelled = threading.Event()
        self.history = []
        self.gate = asyncio.Event()
        self.service = []  # what the other service was told
        self.helper = None

    def notify(self, event, *args):
        for callback in self.callbacks:
            getattr(callback, event, lambda *_: None)(*args)

    async def tool(self, name):
        self.notify("before_tool", name)
        self.history.append(f"call {name}")
        await self.gate.wait()  # no callback if this is cancelled
        self.history.append(f"answer {name}")
        self.notify("after_tool", name)

    def sub_agent(self, work):
        """Start it on a bare thread, as frameworks do."""
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    async def invoke(self, question):
        self.history.append(question)
        yield "thinking"
        await self.tool("search")
        yield "searched"
        await self.tool("mail")
        yield "done"


# The adapter


class Callbacks:
    """Boundaries of tools, from the framework's own callbacks."""

    def __init__(self):
        self.open = {}

    def before_tool(self, name):
        self.open[name] = stoppable.enter("tool", name)

    def after_tool(self, name):
        self.open.pop(name).leave()


class Adapter:
    def __init__(self, framework, supervisor):
        self.framework, self.supervisor = framework, supervisor
        framework.callbacks.append(Callbacks())
        self.ended = []

    async def body(self, question):
        framework, run = self.framework, stoppable.current_run()
        run.annotate(question=question)
        stoppable.on_end(self.ended.append)
        if framework.helper is not None:
            stoppable.adopt_process(pid=framework.helper.pid, name="helper")
        try:
            with stoppable.on_stop(framework.cancelled.set):
                async for event in framework.invoke(question):
                    yield event
                    stoppable.check()
        finally:
            if run.token.should_stop():
                with stoppable.shielded(5):
                    calls = {line.split()[1] for line in framework.history if line.startswith("call")}
                    answered = {line.split()[1] for line in framework.history if line.startswith("answer")}
                    framework.history += [f"stopped {name}" for name in sorted(calls - answered)]

    async def start(self, question, session):
        return await self.supervisor.start(self.body, question, name="toy", key=f"toy:{session}")

    async def run(self, question, session="default"):
        handle = await self.start(question, session)
        async for event in handle.stream(until="body"):
            yield event
        await handle.join()


# What it can do


@pytest.fixture
async def adapter():
    async with Supervisor() as supervisor:
        yield Adapter(Framework(), supervisor)


async def test_what_nobody_stops_runs_as_before(adapter):
    adapter.framework.gate.set()
    assert [event async for event in adapter.run("why")] == ["thinking", "searched", "done"]
    assert adapter.framework.history == ["why", "call search", "answer search", "call mail", "answer mail"]


async def test_a_conversation_is_stopped_by_its_key_and_its_history_is_sealed(adapter):
    framework = adapter.framework
    handle = await adapter.start("why", "ann/1")
    await until(lambda: "call search" in framework.history)
    [receipt] = await adapter.supervisor.stop(key="toy:ann/1", mode="immediate", wait=30)
    assert (receipt.status, receipt.in_flight) == ("stopped", ("tool:search",))
    assert framework.history == ["why", "call search", "stopped search"]
    await until(framework.cancelled.is_set)
    assert {node.name: node.fate for node in (await handle.receipt()).entries if node.kind == "tool"} == {
        "search": "cancelled"
    }
    await until(lambda: adapter.ended)
    assert (await handle.record()).metadata == {"question": "why"}


async def test_the_helper_process_of_the_framework_dies_with_the_run(adapter):
    with stoppable.detached():
        adapter.framework.helper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    handle = await adapter.start("why", "ann/2")
    await until(lambda: "spawn:helper" in handle.run.in_flight)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    adapter.framework.helper.communicate()
    assert adapter.framework.helper.returncode != 0


async def test_a_sub_agent_on_a_bare_thread_is_a_child_and_stops(adapter):
    begun, found = threading.Event(), []

    def body():
        run = stoppable.current_run()

        def work():
            try:
                with stoppable.open_run("researcher", parent=run):
                    begun.set()
                    stoppable.sync.sleep(60)
            except stoppable.RunStopped as stopped:
                found.append(stopped)

        adapter.framework.sub_agent(work)

    handle = await adapter.supervisor.start(body)
    await until(begun.is_set)
    await handle.stop()
    await handle.outcome()
    names = [node.name for node in (await handle.receipt()).entries if node.kind == "run"]
    assert (names, len(found)) == (["body", "researcher"], 1)


async def test_work_in_another_service_is_told(adapter):
    service = adapter.framework.service

    async def tell(stop):
        service.append((stop.mode, stop.reason.message))
        return "cancelled"

    async def body():
        async with stoppable.remote("research", tell=tell, ref={"job": "1"}):
            await asyncio.Event().wait()

    handle = await adapter.supervisor.start(body)
    await until(lambda: "remote:research" in handle.run.in_flight)
    await handle.stop("immediate", "enough")
    assert (await handle.outcome()).status == "stopped"
    assert service == [("immediate", "enough")]


# Only from the guide, and without private names


def test_the_guide_has_every_name_that_the_adapter_uses():
    used = set()
    for part in (Callbacks, Adapter):
        used |= set(re.findall(r"\bstoppable\.([a-z_]+)", inspect.getsource(part)))
        used |= set(re.findall(r"\.(annotate|should_stop|start|stream|join|leave|outcome)\(", inspect.getsource(part)))
    assert {name for name in used if not re.search(rf"\b{name}\(", GUIDE)} == set()


def _private_names():
    """Return the private attributes of what adapters hold."""
    held = (stoppable.Run, stoppable.Token, Supervisor, RunHandle, Boundary, type(stoppable.open_run("x")))
    found = {name for one in held for cls in one.__mro__ for name in vars(cls)}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


@pytest.mark.parametrize("path", sorted((ROOT / "src/stoppable/adapters").rglob("*.py")), ids=lambda path: path.stem)
def test_no_adapter_uses_a_private_attribute_of_the_library(path):
    private, used = _private_names(), []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in private:
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            used += [] if is_own else [f"{path.name}:{node.lineno} {ast.unparse(node)}"]
    assert used == []


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem
)
def test_no_page_shows_a_private_name(page):
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        assert re.search(r"stoppable\._|from stoppable\._", code) is None

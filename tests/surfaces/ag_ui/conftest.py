"""A real server, and a client of the events and messages of the Python package of AG-UI."""

import contextlib
import copy
import functools
import itertools
import json

import ag_ui.core
import httpx
import pytest
from ag_ui.core import RunAgentInput, UserMessage
from pydantic import TypeAdapter

import stoppable
from stoppable import Policy
from stoppable.server import ag_ui as routes

from ... import waiting
from ...server.serving import served
from ..openai_api.agents import GATES, Marks
from .agents import AGENTS

DEADLINE = 100  # only a defect takes so long, also where everything else is busy
# What is in the middle of a step gets little time, but nothing is given up because the machine is busy.
BRISK = Policy(grace=0.2, interrupt=0.05, cancel=DEADLINE, kill=DEADLINE, blind_grace=0.0)
# For what nothing can end.
HASTY = Policy(grace=0.1, interrupt=0.05, cancel=0.1, kill=0.1, blind_grace=0.0)

IS_CURRENT = hasattr(ag_ui.core, "RunFinishedCancelledOutcome")
VERSION = "1.0" if IS_CURRENT else None  # of the protocol, which packages before 1.0 do not say
_EVENT = TypeAdapter(ag_ui.core.Event)
_numbers = itertools.count(1)


class Refused(Exception):
    """A request that was not taken: its status, and the event in its body."""

    def __init__(self, response):
        self.status, self.event = response.status_code, response.json()
        super().__init__(response.text)


class Client:
    """One thread with an agent. It keeps its messages as a client does: text as it comes, and snapshots instead."""

    def __init__(self, url, agent, thread="", headers=None, version=VERSION):
        self.url, self.agent, self.headers, self.version = url, agent, headers or {}, version
        self.thread = thread or f"thread-{next(_numbers)}"
        self.messages = []
        self.run_id = ""

    def body(self, text, **more):
        """Return the input of the next run."""
        if text is not None:
            self.messages.append(UserMessage(id=f"question-{next(_numbers)}", content=text).model_dump(by_alias=True))
        self.run_id = f"run-{next(_numbers)}"
        given = {"tools": [], "context": [], "state": {}, "forwarded_props": {}}
        checked = RunAgentInput(thread_id=self.thread, run_id=self.run_id, messages=self.messages, **given)
        body = checked.model_dump(by_alias=True, mode="json")
        return {**body, **({"protocolVersion": self.version} if self.version else {}), **more}

    @contextlib.contextmanager
    def stream(self, text=None, **more):
        """Yield the events of a run; leaving the block leaves the stream."""
        address = f"{self.url}/agui/{self.agent}"
        body = self.body(text, **more)
        with httpx.stream("POST", address, json=body, headers=self.headers, timeout=DEADLINE) as response:
            if response.status_code != 200:
                response.read()
                raise Refused(response)
            yield self._events(response)

    def _events(self, response):
        for line in response.iter_lines():
            assert line.startswith(("data: ", ":")) or not line
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                checked = _EVENT.validate_python(event)  # refuses what is no event of the protocol
                assert checked.type == event["type"]
                self._take(event)
                yield event

    def _take(self, event):
        match event["type"]:
            case "TEXT_MESSAGE_START":
                owner = {name: event[name] for name in ("subagentRunId",) if name in event}
                self.messages.append({"id": event["messageId"], "role": "assistant", "content": "", **owner})
            case "TEXT_MESSAGE_CONTENT":
                [message] = [one for one in self.messages if one["id"] == event["messageId"]]
                message["content"] += event["delta"]
            case "MESSAGES_SNAPSHOT":
                self.messages = copy.deepcopy(event["messages"])

    def ask(self, text=None, **more):
        """Return all events of a run."""
        with self.stream(text, **more) as events:
            return list(events)

    @property
    def said(self):
        """The messages as texts."""
        return [(one["role"], one["content"]) for one in self.messages]


@contextlib.contextmanager
def serving(policy=BRISK, agents=AGENTS, **options):
    """Serve agents over the protocol, as ``stoppable serve`` does."""
    stoppable.instrument()
    with served(agents, routers=[functools.partial(routes, policy=policy)], **options) as service:
        # Clients keep their connections for five seconds, as the server does: after a pause of just as long on a busy
        # machine, a request would be sent while its connection is closed. A shutdown has time to send what is left.
        service._config.timeout_keep_alive = service._config.timeout_graceful_shutdown = DEADLINE
        try:
            yield service
        finally:
            GATES.release.set()  # a test that fails has not let them go


@contextlib.contextmanager
def connected(agent, policy=BRISK, **options):
    """Yield a server and a client of one of its agents."""
    with serving(policy, **options) as service:
        yield service, Client(service.url, agent)


def wait_until(condition):
    """Wait for something that another thread or process does, and return it."""
    return waiting.wait_until(condition, within=DEADLINE)


@pytest.fixture(autouse=True)
def gates():
    GATES.close()
    yield GATES
    GATES.release.set()


@pytest.fixture
def marks(tmp_path):
    return Marks(tmp_path)


@pytest.fixture
def work(marks):
    """What is said to the agent that works in four ways."""
    return json.dumps({"folder": str(marks.folder)})


def runs(service):
    """Return all runs that no other run started, newest first."""
    return [run for run in service.supervisor.blocking.list().runs if run.parent_id is None]


def ended(service):
    """Return the newest run, once it has ended."""
    return wait_until(lambda: runs(service) and runs(service)[0].over and runs(service)[0])


def stop(service, run_id, reason="enough"):
    """Stop a run as somebody else than its client, and return its receipt."""
    return service.supervisor.blocking.stop(run_id, reason=reason, actor="ann", wait=DEADLINE)


def kinds(events):
    """Return the types of events, those that repeat once."""
    names = [event["type"] for event in events]
    return [name for name, before in zip(names, ["", *names], strict=False) if name != before]


def text_of(events):
    """Return what the agent itself has said."""
    contents = [event for event in events if event["type"] == "TEXT_MESSAGE_CONTENT" and "subagentRunId" not in event]
    return "".join(event["delta"] for event in contents)


def assert_cancelled(event):
    """Check that a run was not called completed, in the words of the version of the package."""
    if IS_CURRENT:
        assert (event["type"], event["outcome"]) == ("RUN_FINISHED", {"type": "cancelled"})
        assert "result" not in event
    else:
        assert (event["type"], event["code"]) == ("RUN_ERROR", "stopped")
    assert event["metadata"]["stoppable"]["status"] == "stopped"
    assert event["metadata"]["stoppable"]["alive"] == []

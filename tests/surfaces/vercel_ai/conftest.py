"""A real server, and a client that keeps its chat as ``useChat`` does."""

import contextlib
import functools
import itertools
import json

import httpx
import pytest
from fastapi import Header

import stoppable
from stoppable import Policy
from stoppable.server import Principal
from stoppable.server import vercel_ai as routes

from ... import waiting
from ...server.serving import served
from ..openai_api.agents import GATES, Marks
from .agents import AGENTS

DEADLINE = 100  # only a defect takes so long, also where everything else is busy
# What is in the middle of a step gets little time, but nothing is given up because the machine is busy.
BRISK = Policy(grace=0.2, interrupt=0.05, cancel=DEADLINE, kill=DEADLINE, blind_grace=0.0)
# For what nothing can end.
HASTY = Policy(grace=0.1, interrupt=0.05, cancel=0.1, kill=0.1, blind_grace=0.0)
# For what ends on its own.
PATIENT = Policy(grace=DEADLINE)

# What version 5.0.0 of the SDK accepts: a part with another field is an error there.
FIELDS = {
    "start": {"messageId", "messageMetadata"},
    "start-step": set(),
    "text-start": {"id"},
    "text-delta": {"id", "delta"},
    "text-end": {"id"},
    "tool-input-available": {"toolCallId", "toolName", "input", "providerExecuted", "dynamic"},
    "tool-output-available": {"toolCallId", "output", "providerExecuted", "dynamic"},
    "tool-output-error": {"toolCallId", "errorText", "providerExecuted", "dynamic"},
    "message-metadata": {"messageMetadata"},
    "finish-step": set(),
    "finish": {"messageMetadata"},
    "abort": set(),
    "error": {"errorText"},
}
_DATA = {"id", "data", "transient"}
_numbers = itertools.count(1)


class Refused(Exception):
    """A request that was not taken: its status and its error."""

    def __init__(self, response):
        self.status, self.error = response.status_code, response.json()["error"]
        super().__init__(response.text)


class Client:
    """One chat with an agent."""

    def __init__(self, url, agent, chat="", headers=None):
        self.url, self.agent, self.headers = url, agent, headers or {}
        self.chat = chat or f"chat-{next(_numbers)}"
        self.messages = []
        self.run_id = ""

    def address(self, more=""):
        return f"{self.url}/vercel/{self.agent}{more}"

    def body(self, text, **more):
        """Return the body of the next request."""
        self.messages.append(message("user", text))
        return {"id": self.chat, "messages": self.messages, "trigger": "submit-message", **more}

    @contextlib.contextmanager
    def stream(self, text="", **more):
        """Yield the parts of the answer; leaving the block leaves the stream."""
        with self._open("POST", self.address(), json=self.body(text, **more)) as response:
            yield self._parts(response)

    @contextlib.contextmanager
    def resume(self):
        """Yield the parts of the turn that is at work, or None if none is."""
        with self._open("GET", self.address(f"/{self.chat}/stream")) as response:
            yield None if response.status_code == 204 else self._parts(response)

    @contextlib.contextmanager
    def _open(self, method, address, **more):
        with httpx.stream(method, address, headers=self.headers, timeout=DEADLINE, **more) as response:
            if response.status_code >= 400:
                response.read()
                raise Refused(response)
            if response.status_code == 200:
                assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
                assert response.headers["content-type"].startswith("text/event-stream")
                self.run_id = response.headers["stoppable-run-id"]
            yield response

    def _parts(self, response):
        is_done = False
        for line in response.iter_lines():
            assert line.startswith(("data: ", ":")) or not line
            if line == "data: [DONE]":
                is_done = True
            elif line.startswith("data: "):
                assert not is_done
                part = json.loads(line.removeprefix("data: "))
                fields = _DATA if part["type"].startswith("data-") else FIELDS[part["type"]]
                assert part.keys() - {"type"} <= fields
                yield part
        assert is_done

    def ask(self, text="", **more):
        """Return all parts of an answer, and put its text into the chat."""
        with self.stream(text, **more) as stream:
            parts = list(stream)
        self.messages.append(message("assistant", text_of(parts)))
        return parts

    def stop(self, body=None, **query):
        """Ask for a stop, as a page does, and return the answer."""
        address = self.address(f"/{self.chat}/stop")
        more = {} if body is None else {"json": body}
        response = httpx.post(address, headers=self.headers, params=query, timeout=DEADLINE, **more)
        if response.status_code >= 400:
            raise Refused(response)
        return response


def message(role, text):
    """Return a message as the SDK makes it."""
    return {"id": f"message-{next(_numbers)}", "role": role, "parts": [{"type": "text", "text": text}]}


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


async def by_header(x_user: str = Header(), x_scopes: str = Header("read start stop")) -> Principal:
    return Principal(owner=x_user, actor=x_user, scopes=x_scopes)


def client_of(service, user, agent, chat, scopes="read start stop"):
    """Return a client of a user with some scopes, of a server that knows users by a header."""
    return Client(service.url, agent, chat, {"X-User": user, "X-Scopes": scopes})


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


def ended(service, run_id):
    """Return a run, once it has ended."""
    get = service.supervisor.blocking.get
    return wait_until(lambda: get(run_id).over and get(run_id))


def kinds(parts):
    """Return the types of parts, those that repeat once."""
    names = [part["type"] for part in parts]
    return [name for name, before in zip(names, ["", *names], strict=False) if name != before]


def only(parts, kind):
    """Return the one part of a type."""
    [part] = [part for part in parts if part["type"] == kind]
    return part


def text_of(parts):
    """Return what the agent has said."""
    return "".join(part["delta"] for part in parts if part["type"] == "text-delta")


def facts_of(parts):
    """Return what the metadata says about the end of a turn."""
    found = [part["messageMetadata"]["stoppable"] for part in parts if "messageMetadata" in part]
    assert len(found) == 2, "at its start and at its end"
    assert found[0] == {"run": found[1]["run"]}
    return found[1]


def assert_aborted(parts, run_id):
    """Check that a turn is told as one whose every part has ended after a stop."""
    assert [part["type"] for part in parts][-3:] == ["message-metadata", "finish-step", "abort"]
    facts = facts_of(parts)
    assert (facts["run"], facts["status"], facts["alive"]) == (run_id, "stopped", [])

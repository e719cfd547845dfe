"""A real server, and the official client of Python."""

import contextlib
import functools
import json
import re
import threading

import httpx
import pytest
from fastapi import Header
from langgraph_sdk import get_sync_client

import stoppable
from stoppable import Policy
from stoppable.server import Principal, langgraph_api

from ... import waiting
from ...server.serving import served
from ..openai_api.agents import GATES, Marks
from .agents import AGENTS

# A connection that has been idle may be closed by the server while a client on a busy machine sends its next request.
ALONE = {"Connection": "close"}
DEADLINE = 100  # only a defect takes so long, also where everything else is busy
# What is in the middle of a step gets little time, but nothing is given up because the machine is busy.
BRISK = Policy(grace=0.2, interrupt=0.05, cancel=DEADLINE, kill=DEADLINE, blind_grace=0.0)
# For what nothing can end.
HASTY = Policy(grace=0.1, interrupt=0.05, cancel=0.1, kill=0.1, blind_grace=0.0)


@contextlib.contextmanager
def serving(policy=BRISK, agents=AGENTS, **options):
    """Serve agents over the API, as ``stoppable serve`` does."""
    stoppable.instrument()
    with served(agents, routers=[functools.partial(langgraph_api, policy=policy)], **options) as service:
        try:
            yield service
        finally:
            GATES.release.set()  # a test that fails has not let them go


@contextlib.contextmanager
def client_of(service, headers=None):
    """Yield the official client."""
    headers = {**ALONE, **(headers or {})}
    client = get_sync_client(url=f"{service.url}/lg", api_key="", timeout=DEADLINE, headers=headers)
    try:
        yield client
    finally:
        client.http.client.close()


@contextlib.contextmanager
def connected(policy=BRISK, **options):
    """Yield a server and the official client."""
    with serving(policy, **options) as service, client_of(service) as client:
        yield service, client


async def by_header(x_user: str = Header(), x_scopes: str = Header("read start stop")) -> Principal:
    return Principal(owner=x_user, actor=x_user, scopes=x_scopes)


def client_for(service, user, scopes="read start stop"):
    """Yield a client of a user with some scopes, of a server that knows users by a header."""
    return client_of(service, headers={"X-User": user, "X-Scopes": scopes})


@contextlib.contextmanager
def refused(status, match=""):
    """Check that the client raises an error with a status, as each version of it does."""
    with pytest.raises(httpx.HTTPStatusError) as error:
        yield error
    assert error.value.response.status_code == status
    assert re.search(match, error.value.response.text)


def cancel_many(client, action="interrupt", **body):
    """Cancel several runs; older versions of the client have no method for it."""
    if hasattr(client.runs, "cancel_many"):
        client.runs.cancel_many(action=action, **body)
    else:
        client.http.post("/runs/cancel", json=body, params={"action": action})


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
    return said(json.dumps({"folder": str(marks.folder), "question": "tides"}))


def said(text):
    """Return the input of a run in which a user says something."""
    return {"messages": [{"role": "user", "content": text}]}


def new_thread(client, **options):
    """Make a thread, and return its id."""
    return client.threads.create(**options)["thread_id"]


def begin(client, agent, given, thread=None, **options):
    """Start a run, and return the ids of its thread and its own."""
    thread = thread or new_thread(client)
    return thread, client.runs.create(thread, agent, input=given, **options)["run_id"]


def ended(client, thread, run_id):
    """Return a run, once it has ended."""

    def look():
        run = client.runs.get(thread, run_id)
        return run["status"] not in {"pending", "running"} and run

    return wait_until(look)


def record(service, run_id):
    """Return what the store has of a run."""
    return service.supervisor.blocking.get(run_id)


def runs(service):
    """Return all runs that no other run started, newest first."""
    return [run for run in service.supervisor.blocking.list().runs if run.parent_id is None]


def chat(client, thread):
    """Return what was said in a thread."""
    return [(one["type"], one["content"]) for one in client.threads.get_state(thread)["values"].get("messages", [])]


class Reader(threading.Thread):
    """Reads a stream on a thread of its own, and keeps its parts."""

    def __init__(self, stream):
        super().__init__()
        self.parts, self._stream = [], stream
        self.start()

    def run(self):
        self.parts.extend(self._stream)

    def finish(self):
        """Return all parts, once the stream has ended."""
        self.join(DEADLINE)
        assert not self.is_alive()
        return self.parts


def events(parts):
    """Return the names of the events of a stream."""
    return [part.event for part in parts]


def text_of(parts):
    """Return what the agent has said in the messages of a stream."""
    return "".join(part.data[0]["content"] for part in parts if part.event == "messages")

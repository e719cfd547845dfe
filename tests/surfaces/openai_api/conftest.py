"""A real server, and the official client."""

import contextlib
import functools
import json

import openai
import pytest

import stoppable
from stoppable import Policy
from stoppable.server import openai_api

from ... import waiting
from ...server.serving import served
from .agents import AGENTS, GATES, Marks

DEADLINE = 100  # only a defect takes so long, also where everything else is busy
# What is in the middle of a step gets little time, but nothing is given up because the machine is busy.
BRISK = Policy(grace=0.2, interrupt=0.05, cancel=DEADLINE, kill=DEADLINE, blind_grace=0.0)
# For what nothing can end.
HASTY = Policy(grace=0.1, interrupt=0.05, cancel=0.1, kill=0.1, blind_grace=0.0)


@contextlib.contextmanager
def serving(policy=BRISK, agents=AGENTS, **options):
    """Serve agents over the API, as ``stoppable serve`` does."""
    stoppable.instrument()
    with served(agents, routers=[functools.partial(openai_api, policy=policy)], **options) as service:
        # Clients keep their connections for five seconds, as the server does: after a pause of just as long on a busy
        # machine, a request would be sent while its connection is closed. A shutdown has time to send what is left.
        service._config.timeout_keep_alive = service._config.timeout_graceful_shutdown = DEADLINE
        try:
            yield service
        finally:
            GATES.release.set()  # a test that fails has not let them go


@contextlib.contextmanager
def client_of(service, **options):
    """Yield the official client."""
    options = {"api_key": "none", "timeout": DEADLINE, "max_retries": 0, **options}
    with openai.OpenAI(base_url=f"{service.url}/v1", **options) as client:
        yield client


@contextlib.contextmanager
def connected(policy=BRISK, **options):
    """Yield a server and the official client."""
    with serving(policy, **options) as service, client_of(service) as client:
        yield service, client


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
    return json.dumps({"folder": str(marks.folder), "question": "tides"})


def run_of(service, response_id):
    """Return the record of the run that a response is."""
    return service.supervisor.blocking.get(response_id.removeprefix("resp_"))


def newest(service):
    """Return the newest run."""
    return service.supervisor.blocking.list(limit=1).runs[0]


def runs(service):
    return service.supervisor.blocking.list().runs

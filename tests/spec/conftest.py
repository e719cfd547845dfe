"""The specification is performed with every kind of participant."""

import sys
import threading

import pytest
from tests.participant_kinds import AgentProcesses, Groups, PlainCalls, PlainProcesses, PlainThreads, Tasks, Threads

import stoppable
from stoppable.testing import ParticipantContract

pytest.register_assert_rewrite("stoppable.testing.participant_suite")

PLAIN = [PlainThreads(), PlainCalls(), PlainProcesses()]
KINDS: list[ParticipantContract] = [Tasks(), Threads(), Groups(), AgentProcesses(), *PLAIN]


@pytest.fixture(params=KINDS, ids=repr)
def kind(request) -> ParticipantContract:
    if request.param not in PLAIN:
        yield request.param
        return
    stoppable.instrument()
    yield request.param
    stoppable.uninstrument()


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """What is specified holds from the acknowledgement on, which an agent process on a busy machine gives late."""
    monkeypatch.setattr("stoppable._engine.handle._ACKNOWLEDGE_SECONDS", 30.0)


@pytest.fixture
def probe(kind, tmp_path):
    """Whatever a test left waiting may go on when it is over."""
    probe = kind.probe(tmp_path)
    yield probe
    probe.release()


@pytest.fixture
def restless():
    """Threads that are switched every microsecond.

    They are not traced for coverage: CPython 3.11 refuses to install a trace function while another thread does.
    """
    interval, trace = sys.getswitchinterval(), threading.gettrace()
    threading.settrace(None)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    threading.settrace(trace)

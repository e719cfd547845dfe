"""The specification is performed with every kind of participant."""

import pytest

from stoppable.testing import ParticipantContract, Probe, Tasks, Threads

KINDS: list[ParticipantContract] = [Tasks(), Threads()]


@pytest.fixture(params=KINDS, ids=repr)
def kind(request) -> ParticipantContract:
    return request.param


@pytest.fixture
def probe():
    """Whatever a test left waiting may go on when it is over."""
    probe = Probe()
    yield probe
    probe.release()

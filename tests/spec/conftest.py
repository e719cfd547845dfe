"""The specification is performed with every kind of participant."""

import pytest

from stoppable.testing import Groups, ParticipantContract, Tasks, Threads, Workers

KINDS: list[ParticipantContract] = [Tasks(), Threads(), Groups(), Workers()]


@pytest.fixture(params=KINDS, ids=repr)
def kind(request) -> ParticipantContract:
    return request.param


@pytest.fixture
def probe(kind, tmp_path):
    """Whatever a test left waiting may go on when it is over."""
    probe = kind.probe(tmp_path)
    yield probe
    probe.release()

"""The suite for kinds of participants, as somebody who brings one of their own would use it."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from tests.participant_kinds import Tasks

import stoppable
from stoppable.testing import ParticipantContract, ParticipantSuite, Probe
from stoppable.testing.scripts import Step, perform_blocking


class Visits(ParticipantContract):
    """Calls on threads that an async agent waits for."""

    name = "visit"
    strongest = "lost"

    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        return await stoppable.spawn(
            functools.partial(stoppable.to_thread, perform_blocking), steps, probe, name="agent"
        )


class TestVisits(ParticipantSuite):
    def make_kind(self) -> ParticipantContract:
        return Visits()


def test_a_kind_that_breaks_a_claim_fails_it():
    class Unlisted(Tasks):
        def label(self, kind: str, name: str) -> str:
            return "another name"

    class Suite(ParticipantSuite):
        def make_kind(self) -> ParticipantContract:
            return Unlisted()

    with pytest.raises(AssertionError):
        Suite().test_a_boundary_in_flight_finishes_and_the_next_is_not_entered()


def test_a_claim_for_each_guarantee_about_participants_is_in_it():
    assert len([name for name in vars(ParticipantSuite) if name.startswith("test_")]) >= 20

"""G10: a stop never fails because of a race; the same request returns the same receipt."""

import pytest
from tests.participant_kinds import Groups, Tasks, Threads

import stoppable
from stoppable.testing.participant_suite import (
    test_the_same_stop_again_returns_the_same_receipt,
    test_twenty_threads_that_stop_at_once_agree,
)
from stoppable.testing.scripts import Child, Effect

__all__ = [  # what every kind of participant must do, for those of others too
    "test_the_same_stop_again_returns_the_same_receipt",
    "test_twenty_threads_that_stop_at_once_agree",
]


@pytest.mark.parametrize("kind", [Tasks(), Threads(), Groups()], ids=repr)  # a worker's children are in the worker
async def test_a_stop_of_a_child_whose_parent_was_stopped_says_what_is_in_flight_there(kind, probe):
    handle = await kind.start([Child([Effect("deep")])], probe)
    await probe.seen("enter deep")
    (child,) = handle.run.list_children()
    await handle.stop("cooperative")
    receipt = child.stop("cooperative")
    in_flight = (kind.label("tool", "deep"),)
    assert (receipt.answer, receipt.in_flight, receipt.run_id) == ("already_stopping", in_flight, child.id)
    probe.release()
    await handle.outcome()
    assert {node.run_id for node in child.receipt.entries} == {child.id}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "gently"}, "cooperative, graceful, immediate, kill"),
        ({"grace": -1}, "seconds from 0 up"),
        ({"grace": float("nan")}, "seconds from 0 up"),
        ({"grace": "soon"}, "seconds from 0 up"),
        ({"grace": 10**20}, "up to 31,536,000"),
    ],
)
async def test_a_stop_that_makes_no_sense_says_what_does_and_stops_nothing(kind, probe, arguments, message):
    handle = await kind.start([Effect("work")], probe)
    with pytest.raises(stoppable.InvalidArgument, match=message):
        await handle.stop(**arguments)
    assert not handle.run.token.stopped
    probe.release()
    assert (await handle.outcome()).status == "completed"

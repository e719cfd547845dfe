"""G3: a stopped token stays stopped, with its first reason, for ever, on every thread, after the run ended."""

import pytest

import stoppable
from stoppable._core.node import RunNode
from stoppable.testing.participant_suite import (
    test_it_is_seen_on_other_threads_and_after_the_end,
    test_the_first_reason_stays_and_later_ones_are_appended,
    test_trying_again_is_a_new_run_with_a_fresh_token,
)
from stoppable.testing.scripts import Effect

__all__ = [  # what every kind of participant must do, for those of others too
    "test_it_is_seen_on_other_threads_and_after_the_end",
    "test_the_first_reason_stays_and_later_ones_are_appended",
    "test_trying_again_is_a_new_run_with_a_fresh_token",
]


@pytest.mark.parametrize(("said", "actor"), [(None, "ann"), ("bob", "bob")])
def test_a_whole_reason_is_kept_and_gets_the_actor_if_it_names_none(said, actor):
    run = RunNode("work")
    given = stoppable.Reason(kind="policy", message="enough", actor=said, at=5.0)
    reason = run.stop(reason=given, actor="ann").reason
    assert (reason.kind, reason.message, reason.actor, reason.at) == ("policy", "enough", actor, 5.0)


async def test_a_token_cannot_be_set(kind, probe):
    handle = await kind.start([], probe)
    with pytest.raises(AttributeError):
        handle.run.token.stopped = True
    await handle.outcome()


async def test_repeated_stops_do_not_grow_without_bound(kind, probe):
    handle = await kind.start([Effect("work")], probe)
    await probe.seen("enter work")
    for _ in range(1000):
        await handle.stop("cooperative", "again")
    assert len(handle.run.token.reasons) < 100
    probe.release()
    await handle.outcome()
    assert isinstance(handle.run.token, stoppable.Token)

"""G2: one terminal status, written by compare-and-set, immutable."""

import asyncio
import random
import threading

import pytest

import stoppable
from stoppable._core.node import RunNode
from stoppable._core.values import Status
from stoppable.testing.participant_suite import (
    test_a_stop_after_the_end_changes_nothing,
)
from stoppable.testing.scripts import Effect, Return

__all__ = [  # what every kind of participant must do, for those of others too
    "test_a_stop_after_the_end_changes_nothing",
]


def test_the_transition_table_is_the_one_of_the_contract():
    table = {status.value: {follower.value for follower in status.followers} for status in Status}
    ends = {"completed", "failed", "stopped", "lost"}
    assert table == {
        "pending": {"running", "stopped", "lost"},
        "running": {"stopping", "completed", "failed", "lost"},
        "stopping": ends,
        **{end: set() for end in ends},
    }
    assert {status.value for status in Status if status.terminal} == ends


async def test_a_late_end_of_a_run_that_was_given_up_changes_nothing(kind, probe, clock):
    handle = await kind.start([Effect("stubborn"), Return("late")], probe)
    await probe.seen("enter stubborn")
    await handle.stop("kill")
    if kind.strongest == "lost":
        clock.advance(2)
    outcome = await handle.outcome()
    probe.release()
    await _thread_or_task_ended(handle)
    assert outcome.status == ("stopped" if kind.strongest == "kill" else "lost")
    assert handle.run.outcome is outcome


async def _thread_or_task_ended(handle):
    carrier = handle._carrier
    while not (carrier.done() if isinstance(carrier, asyncio.Task) else not carrier.is_alive()):
        await asyncio.sleep(0.001)


@pytest.mark.usefixtures("restless")
def test_stop_against_natural_completion_2000_rounds():
    """Whoever wins, there is one terminal status and the receipt agrees with it."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomness = random.Random(seed)
    seen = {_race(randomness) for _ in range(2000)}
    assert seen >= {("already_finished", "completed"), ("accepted", "stopped"), ("accepted", "completed")}


def _race(randomness: random.Random) -> tuple[str, str]:
    run = RunNode("race")
    run.begin(None)
    go = threading.Barrier(2)
    answers = []

    def stop() -> None:
        go.wait(30)
        answers.append(run.stop("cooperative"))

    def end() -> None:
        if randomness.random() < 0.5 and run.closed:
            run.deliver(raised=True)
        run.end("value", None)

    thread = threading.Thread(target=stop)
    thread.start()
    order = randomness.choice(("end first", "stop first", "race", "race"))  # so that each end is seen, by no luck
    if order == "end first":
        end()
    go.wait(30)
    if order == "stop first":
        thread.join(30)
    for _ in range(randomness.randrange(randomness.choice((50, 400)))):
        if run.closed:
            break
    if order != "end first":
        end()
    thread.join(30)
    (receipt,) = answers
    outcome, final = run.outcome, run.receipt
    if receipt.answer == "already_finished":
        assert final is None
        assert outcome.reason is None
    else:
        assert final.too_late == (outcome.status == "completed")
        assert outcome.reason == receipt.reason
    assert outcome.result == "value"
    return receipt.answer, outcome.status


async def test_two_threads_that_end_a_run_agree_on_the_outcome():
    for _ in range(300):
        run = RunNode("race")
        run.begin(None)
        run.stop("cooperative")
        go = threading.Barrier(2)

        def act(end, run=run, go=go):
            go.wait(30)
            run.end(None, None) if end else run.lose()

        threads = [threading.Thread(target=act, args=(end,)) for end in (True, False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert run.status.terminal
        assert run.outcome is run.outcome


async def test_the_outcome_cannot_be_changed():
    handle = await stoppable.spawn(asyncio.sleep, 0)
    outcome = await handle.outcome()
    with pytest.raises(AttributeError):
        outcome.status = "failed"

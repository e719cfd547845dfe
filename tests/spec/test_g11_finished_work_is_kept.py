"""G11: boundaries raise on entry, never on exit; partials recorded before the end are in the outcome."""

import asyncio

import pytest

import stoppable
from stoppable.testing.participant_suite import (
    test_a_returned_value_does_not_overwrite_the_partial,
    test_partials_are_kept_however_the_run_ends,
)
from stoppable.testing.scripts import Effect, FileProbe

__all__ = [  # what every kind of participant must do, for those of others too
    "test_a_returned_value_does_not_overwrite_the_partial",
    "test_partials_are_kept_however_the_run_ends",
]


@pytest.mark.parametrize("mode", ["cooperative", "graceful"])
async def test_the_answer_of_a_call_in_flight_is_kept(mode):
    answered, called = asyncio.Event(), asyncio.Event()
    answers = []

    @stoppable.boundary("llm")
    async def ask():
        called.set()
        await answered.wait()
        return "paid for"

    async def agent():
        while True:
            answers.append(await ask())
            stoppable.set_partial(list(answers))

    handle = await stoppable.spawn(agent)
    await called.wait()
    await handle.stop(mode)
    answered.set()
    outcome = await handle.outcome()
    assert answers == ["paid for"]
    assert (outcome.status, outcome.partial) == ("stopped", ["paid for"])


async def test_an_immediate_stop_keeps_what_was_answered_before():
    async def agent():
        for number in range(100):
            with stoppable.boundary("llm"):
                await asyncio.sleep(0.001 if number < 3 else 60)
            stoppable.append_partial(f"{number} ")

    handle = await stoppable.spawn(agent)
    while handle.run.partial != "0 1 2 ":
        await asyncio.sleep(0.001)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, outcome.rung) == ("stopped", "0 1 2 ", "cancel")


async def test_what_a_command_wrote_before_it_was_ended_is_in_the_outcome(tmp_path):
    probe = FileProbe(tmp_path)

    async def agent():
        stoppable.append_partial("before, ")
        await stoppable.run_process("echo half; echo up >> notes; sleep 60", shell=True, cwd=tmp_path)

    handle = await stoppable.spawn(agent)
    await probe.seen("up")
    await handle.stop("kill")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial) == ("stopped", "before, half\n")


async def test_the_answer_of_a_command_that_ends_in_time_is_kept(tmp_path):
    probe = FileProbe(tmp_path)
    answers = []

    async def agent():
        answers.append(await stoppable.run_process(probe.command(Effect("work"))))
        stoppable.check()

    handle = await stoppable.spawn(agent)
    await probe.seen("enter work")
    await handle.stop()
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, answers[0].returncode) == ("stopped", None, 0)

"""Turn: what a stopped turn has done, and how it gets into a history."""

import asyncio
import threading

import pytest

import stoppable
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT, AnswerKind, Turn


def test_a_call_is_answered_with_its_result_or_with_what_is_known_of_it():
    turn = Turn()
    turn.request("done", "in flight", "not begun")
    turn.begin("done")
    turn.begin("in flight")
    turn.finish("done", {"booked": True})
    answers = turn.answers()
    assert [answer.call_id for answer in answers] == ["done", "in flight", "not begun"]
    assert [answer.kind for answer in answers] == [
        AnswerKind.RESULT,
        AnswerKind.MAY_HAVE_TAKEN_EFFECT,
        AnswerKind.NO_EFFECT,
    ]
    assert [answer.text for answer in answers] == ["{'booked': True}", MAY_HAVE_TAKEN_EFFECT, NO_EFFECT]
    assert [answer.is_result for answer in answers] == [True, False, False]
    assert [answer.call_id for answer in turn.answers(answered=["done"])] == ["in flight", "not begun"]
    assert [turn.has_begun(call_id) for call_id in ("in flight", "not begun")] == [True, False]


def test_none_is_a_result_until_the_call_begins_again():
    turn = Turn()
    turn.finish("call", None)
    assert turn.answer("call").is_result
    assert turn.answer("call").text == "None"
    turn.begin("call")
    assert turn.answer("call").kind is AnswerKind.MAY_HAVE_TAKEN_EFFECT
    assert turn.answer("unknown").kind is AnswerKind.NO_EFFECT


def test_the_text_of_each_speaker_is_kept_until_the_history_has_it():
    turn = Turn()
    for speaker, text in (("ann", "I "), ("bob", "We "), ("ann", "do")):
        turn.say(text, speaker)
    assert turn.texts() == {"ann": "I do", "bob": "We "}
    assert turn.text == "I doWe "
    turn.forget_text("ann")
    turn.forget_text("nobody")
    assert turn.text == "We "
    turn.request("call")
    turn.begin("call")
    turn.clear()
    assert (turn.text, turn.answers(), turn.has_begun("call")) == ("", [], False)


def test_calls_may_end_on_many_threads_while_the_answers_are_read():
    turn, barrier = Turn(), threading.Barrier(9)

    def work(number):
        barrier.wait()
        for place in range(200):
            call_id = (number, place)
            turn.request(call_id)
            turn.begin(call_id)
            turn.say("x", number)
            turn.finish(call_id, place)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    barrier.wait()
    while any(thread.is_alive() for thread in threads):
        assert len(turn.text) <= 1600
        turn.answers()
    assert len(turn.answers()) == len(turn.text) == 1600
    assert all(answer.is_result for answer in turn.answers())


async def stopped_in(agent):
    handle = await stoppable.spawn(agent)
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    return outcome


async def test_a_stopped_turn_is_sealed_once_and_outside_its_run():
    turn, writes, results = Turn(), [], []

    async def write():
        stoppable.check()  # the stop has no effect
        writes.append(stoppable.current_run())
        await asyncio.sleep(0)

    async def agent():
        results.append(await turn.seal(write))  # not stopped yet
        stoppable.current_run().stop()
        results.extend([await turn.seal(write), await turn.seal(write)])
        stoppable.check()

    await stopped_in(agent)
    assert results == [False, True, False]
    assert writes == [None]


@pytest.mark.parametrize("error", [ValueError("no disk"), ExceptionGroup("two", [ValueError("no disk")])])
async def test_a_history_that_cannot_be_written_is_logged_and_the_run_is_stopped(error, caplog):
    async def write():
        raise error

    async def agent():
        stoppable.current_run().stop()
        assert not await Turn().seal(write)
        stoppable.check()

    outcome = await stopped_in(agent)
    assert outcome.error is None
    assert "the history of the stopped run" in caplog.text
    assert "no disk" in caplog.text


async def test_outside_a_run_nothing_is_sealed():
    async def write():
        raise AssertionError("nothing was stopped")

    assert not await Turn().seal(write)

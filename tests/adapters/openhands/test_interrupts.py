"""What plain OpenHands gets wrong about an interrupt, one case after the other, on the real SDK."""

import asyncio
import contextlib
import os
import signal
import threading
import time

import pytest
from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.event import UserRejectObservation
from openhands.sdk.security.confirmation_policy import AlwaysConfirm

import stoppable
from stoppable.adapters.openhands import run_of, supervise, tool_calls
from stoppable.adapters.openhands.conversations import of

from .world import DEADLINE, answers, asks, call, converse, hold, interrupts, says, status

QUICK = stoppable.Policy(cancel=0.1, kill=0.1)


async def paused(conversation):
    async with asyncio.timeout(DEADLINE):
        while status(conversation) != "paused":
            await asyncio.sleep(0.002)


async def ended(run):
    async with asyncio.timeout(DEADLINE):
        while run.outcome is None:
            await asyncio.sleep(0.002)


@pytest.fixture
def talk(tmp_path, world):
    """Make supervised conversations that are closed afterwards."""
    made = []

    def make(*script, options=None, **more):
        made.append(supervise(converse(tmp_path, *script, **more), **(options or {})))
        return made[-1]

    yield make
    world.release_all()
    for conversation in made:
        conversation.close()


async def test_a_tool_that_does_not_obey_is_waited_for_and_the_pause_is_shown_at_once(world, talk):
    conversation = talk(asks(hold("a")), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    conversation.interrupt()
    await paused(conversation)
    run = run_of(conversation)
    assert run.status == "stopping"
    assert run.receipt.in_flight == ("tool:hold",)
    world.release("a")
    await running
    assert run.outcome.status == "stopped"
    assert run.outcome.reason.message == "interrupt()"
    assert interrupts(conversation) == 1
    conversation.send_message("again")
    await conversation.arun()
    assert status(conversation) == "finished"


async def test_a_tool_that_never_ends_is_lost_and_named_and_the_next_run_works(world, talk):
    conversation = talk(asks(hold("a")), says("done"), options={"policy": QUICK})
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    conversation.interrupt()
    await running
    run = run_of(conversation)
    assert run.outcome.status == "lost"
    stacks = [line for node in run.receipt.entries for line in node.stack]
    assert any("in hold" in line for line in stacks), run.receipt
    conversation.send_message("again")
    await conversation.arun()
    assert status(conversation) == "finished"


async def test_a_late_thread_never_sees_the_token_of_the_next_run(world, talk):
    conversation = talk(asks(hold("a")), asks(hold("b", obeys=True)), says("done"), options={"policy": QUICK})
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    conversation.interrupt()
    await running
    conversation.send_message("again")
    second = asyncio.create_task(conversation.arun())
    await world.saw("enter b")
    before = len(world.tokens["a"])
    async with asyncio.timeout(DEADLINE):
        while len(world.tokens["a"]) < before + 3 or len(world.tokens["b"]) < 3:
            await asyncio.sleep(0.002)
    assert set(world.tokens["a"][before:]) == {True}
    assert set(world.tokens["b"]) == {False}
    world.release("a", "b")
    await second
    assert status(conversation) == "finished"


async def test_parallel_tools_do_not_stall_the_loop(world, talk):
    names = ("a", "b", "c")
    conversation = talk(asks(*map(hold, names)), says("done"), at_once=3)
    running = asyncio.create_task(conversation.arun())
    for name in names:
        await world.saw(f"enter {name}")
    conversation.interrupt()
    await paused(conversation)  # while all three work on
    assert not any(f"finish {name}" in world.notes for name in names)
    world.release(*names)
    await running
    assert run_of(conversation).outcome.status == "stopped"


def test_an_interrupt_of_a_sync_run_does_not_block(world, talk):
    conversation = talk(asks(hold("a")), says("done"))
    running = threading.Thread(target=conversation.run)
    running.start()
    world.seen("enter a")
    conversation.interrupt()
    assert "finish a" not in world.notes
    deadline = time.monotonic() + DEADLINE
    while status(conversation) != "paused" and time.monotonic() < deadline:
        threading.Event().wait(0.002)
    assert status(conversation) == "paused"
    assert "finish a" not in world.notes
    assert conversation.cancel_token.is_cancelled
    world.release("a")
    running.join(DEADLINE)
    assert run_of(conversation).outcome.status == "stopped"
    assert conversation.cancel_token.is_cancelled
    conversation.send_message("again")
    conversation.run()
    assert status(conversation) == "finished"


async def test_a_timeout_around_it_keeps_its_meaning(world, talk):
    conversation = talk(asks(hold("a", obeys=True)), says("done"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as timeout:
            world_saw = asyncio.create_task(world.saw("enter a"))
            world_saw.add_done_callback(lambda _: timeout.reschedule(asyncio.get_running_loop().time()))
            await conversation.arun()
    run = run_of(conversation)
    await ended(run)
    assert run.outcome.status == "stopped"
    assert run.outcome.reason.kind == "external"


async def test_a_cancel_of_its_task_keeps_its_meaning_and_the_next_run_waits_for_the_clean_up(world, talk):
    conversation = talk(asks(hold("a", obeys=True)), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await conversation.arun()  # at once
    assert status(conversation) == "finished"


async def test_an_interrupt_before_the_run_is_honoured_once(world, talk):
    conversation = talk(asks(hold("a")), says("done"))
    conversation.interrupt()
    await conversation.arun()
    assert world.notes == []
    assert run_of(conversation).outcome.status == "stopped"
    assert status(conversation) == "paused"
    world.release("a")
    await conversation.arun()
    assert status(conversation) == "finished"


async def test_what_is_said_after_an_interrupt_is_wanted(world, talk):
    conversation = talk(says("done"))
    conversation.interrupt()
    conversation.send_message("go on")
    await conversation.arun()
    assert status(conversation) == "finished"


async def test_an_interrupt_of_a_finished_conversation_meets_no_later_run(world, talk):
    conversation = talk(says("done"), says("done again"))
    await conversation.arun()
    conversation.interrupt()
    assert status(conversation) == "finished"
    conversation.send_message("again")
    await conversation.arun()
    assert status(conversation) == "finished"


async def test_a_repeated_interrupt_does_not_meet_the_run_that_resumes(world, talk):
    conversation = talk(asks(hold("a", obeys=True)), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    conversation.interrupt()
    conversation.interrupt()
    await running
    conversation.interrupt()
    await conversation.arun()
    assert status(conversation) == "finished"


def test_whoever_pauses_and_interrupts_can_resume(world, talk):
    conversation = talk(says("done"))
    conversation.pause()
    conversation.interrupt()
    conversation.interrupt()
    conversation.run()
    assert status(conversation) == "finished"


async def test_an_interrupt_after_a_run_that_was_paused_does_not_meet_the_run_that_resumes(world, talk):
    conversation = talk(asks(hold("a")), asks(hold("b")), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    pausing = threading.Thread(target=conversation.pause)  # it waits for the lock of the state
    pausing.start()
    world.release("a", "b")
    await running
    await asyncio.to_thread(pausing.join)
    conversation.interrupt()
    await conversation.arun()
    assert status(conversation) == "finished"


async def test_what_is_said_after_a_pause_can_be_interrupted_before_it_runs(world, talk):
    conversation = talk(asks(hold("a")), says("done"))
    conversation.pause()
    conversation.send_message("now")
    conversation.interrupt()
    await conversation.arun()
    assert world.notes == []
    assert run_of(conversation).outcome.status == "stopped"


async def test_an_interrupt_of_a_run_that_waits_for_the_clean_up_of_the_last_one_stops_it(world, talk):
    conversation = talk(asks(hold("a", obeys=True)), asks(hold("b")), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    conversation.interrupt()
    await running
    clean_up = of(conversation).turn.unwound
    clean_up.clear()  # as if it took longer
    second = asyncio.create_task(conversation.arun())
    for _ in range(5):
        await asyncio.sleep(0)
    conversation.interrupt()
    clean_up.set()
    await second
    assert "enter b" not in world.notes
    assert run_of(conversation).outcome.status == "stopped"
    world.release("b")
    await conversation.arun()
    assert status(conversation) == "finished"


async def test_an_interrupt_from_the_last_event_leaves_the_callers_task_alone(world, tmp_path):
    def on_event(event):
        if type(event).__name__ == "MessageEvent" and event.source == "agent":
            conversation.interrupt()

    conversation = supervise(converse(tmp_path, says("done"), callbacks=[on_event]))
    await conversation.arun()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asyncio.current_task().cancelling()
    conversation.close()


async def test_what_follows_the_events_is_no_part_of_the_run(world, tmp_path):
    supervise(converse(tmp_path)).close()  # callbacks of conversations that are made from now on
    tasks = []

    def on_event(event):
        with contextlib.suppress(RuntimeError):  # a thread without a loop
            tasks.append(asyncio.get_running_loop().create_task(asyncio.sleep(DEADLINE)))

    conversation = supervise(converse(tmp_path, asks(hold("a", obeys=True)), says("done"), callbacks=[on_event]))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    conversation.interrupt()
    await running
    assert run_of(conversation).outcome.status == "stopped"
    assert tasks
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    conversation.close()


async def test_an_interrupt_cuts_a_model_call(world, talk):
    conversation = talk(says("done"), held="answer")
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter answer")
    conversation.interrupt()
    await running
    assert run_of(conversation).receipt.in_flight == ("llm:test-model",)
    assert status(conversation) == "paused"
    await conversation.arun()
    assert status(conversation) == "finished"


async def test_a_graceful_stop_lets_the_tool_finish_and_keeps_its_answer(world, talk):
    conversation = talk(asks(hold("a", "one")), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    run_of(conversation).stop("graceful", "enough")
    world.release("a")
    await running
    assert answers(conversation) == {"one": "a done"}
    assert world.notes.count("model") == 1
    assert status(conversation) == "paused"
    assert interrupts(conversation) == 1


async def test_one_tool_call_is_stopped_alone_and_the_agent_goes_on(world, talk):
    conversation = talk(asks(hold("a", "one", obeys=True), hold("b", "two")), says("done"), at_once=2)
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    await world.saw("enter b")
    tool_calls(conversation)["one"].stop("immediate", "too slow")
    await world.saw("obeyed a")
    world.release("b")
    await running
    assert status(conversation) == "finished"
    assert run_of(conversation).outcome.status == "completed"
    said = answers(conversation)
    assert said["two"] == "b done"
    assert "stopped (too slow)" in said["one"]
    assert "ended early" in said["one"]


async def test_one_tool_call_that_never_ends_is_lost_alone_and_the_agent_goes_on(world, talk):
    conversation = talk(asks(hold("a", "one"), hold("b", "two")), says("done"), options={"policy": QUICK})
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    world.release("b")
    tool_calls(conversation)["one"].stop("immediate", "too slow")
    await running
    assert status(conversation) == "finished"
    assert "lost (too slow)" in answers(conversation)["one"]
    assert answers(conversation)["two"] == "b done"


def test_one_tool_call_of_a_sync_run_is_stopped_alone(world, talk):
    conversation = talk(asks(hold("a", "one", obeys=True), hold("b", "two")), says("done"))
    running = threading.Thread(target=conversation.run)
    running.start()
    world.seen("enter a")
    tool_calls(conversation)["one"].stop("immediate", "too slow")
    world.release("b")
    running.join(DEADLINE)
    assert status(conversation) == "finished"
    assert "stopped (too slow)" in answers(conversation)["one"]
    assert answers(conversation)["two"] == "b done"


async def test_tool_calls_are_executed_in_their_order(world, talk):
    names = [str(number) for number in range(8)]
    conversation = talk(asks(*map(hold, names)), says("done"))
    world.release(*names)
    await conversation.arun()
    assert [note for note in world.notes if note.startswith("enter")] == [f"enter {name}" for name in names]


async def test_a_tool_call_that_waits_for_its_turn_never_begins_after_a_stop(world, talk):
    conversation = talk(asks(hold("a", "one", obeys=True), hold("b", "two")), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    conversation.interrupt()
    await running
    assert "enter b" not in world.notes
    assert set(answers(conversation)) == {"one", "two"}


async def test_errors_reach_the_caller_as_they_are(world, talk):
    conversation = talk(ValueError("broken"))
    with pytest.raises(ConversationRunError, match="broken"):
        await conversation.arun()
    assert run_of(conversation).outcome.status == "failed"
    assert status(conversation) == "error"


async def test_the_error_of_a_tool_is_an_answer(world, talk):
    conversation = talk(asks(call("hold", "one", wrong="argument")), says("done"))
    await conversation.arun()
    assert status(conversation) == "finished"
    assert "wrong" in answers(conversation)["one"]


async def test_a_supervisor_keeps_the_run_with_its_tool_calls_and_stops_it_by_its_key(world, tmp_path):
    async with stoppable.Supervisor() as supervisor:
        conversation = supervise(
            converse(tmp_path, asks(hold("a", "one", obeys=True)), says("done")), supervisor, owner="ann"
        )
        running = asyncio.create_task(conversation.arun())
        await world.saw("enter a")
        stopped = await supervisor.stop(key=f"openhands:{conversation.id}", mode="immediate", reason="no", wait=20)
        await running
        assert [receipt.status for receipt in stopped] == ["stopped"]
        record = await supervisor.get(run_of(conversation).id)
        assert (record.status, record.outcome.reason.message, record.owner) == ("stopped", "no", "ann")
        names = {node.name for node in stopped[0].entries if node.kind == "run"}
        assert names == {"openhands", "tool hold"}
        conversation.close()


def test_a_sync_run_is_kept_by_a_supervisor_for_blocking_code(world, tmp_path):
    with stoppable.sync.Supervisor() as supervisor:
        conversation = supervise(converse(tmp_path, says("done")), supervisor)
        conversation.run()
        assert supervisor.get(run_of(conversation).id).status == "completed"
        with pytest.raises(stoppable.InvalidArgument, match="sync"):
            asyncio.run(conversation.arun())
        conversation.close()


async def test_in_a_run_of_your_own_a_conversation_is_a_child(world, talk, tmp_path):
    conversation = converse(tmp_path, asks(hold("a", obeys=True)), says("done"))

    @stoppable.agent
    async def mine():
        await conversation.arun()

    handle = await stoppable.spawn(mine)
    await world.saw("enter a")
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert status(conversation) == "paused"
    conversation.close()


async def test_without_supervision_nothing_changes(world, tmp_path):
    conversation = converse(tmp_path, asks(hold("a", obeys=True)), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    assert tool_calls(conversation) == {}
    assert run_of(conversation) is None
    conversation.interrupt()
    await running
    assert conversation.cancel_token is conversation._cancel_token
    conversation.close()


def test_settings_that_mean_nothing_are_refused(tmp_path):
    with pytest.raises(stoppable.InvalidArgument, match="background"):
        supervise(converse(tmp_path), background="no")
    with pytest.raises(stoppable.InvalidArgument, match="another process"):
        supervise(object())


def confirming(conversation):
    conversation.set_confirmation_policy(AlwaysConfirm())
    return conversation


async def test_a_stop_at_a_confirmation_prompt_refuses_the_action(world, talk):
    conversation = confirming(talk(asks(hold("danger", "one")), says("done")))
    world.release("danger")
    await conversation.arun()
    assert status(conversation) == "waiting_for_confirmation"
    conversation.interrupt(reason="not that")
    assert status(conversation) == "paused"
    assert refusals(conversation) == {"one": "not that"}
    await conversation.arun()
    assert status(conversation) == "finished"
    assert "enter danger" not in world.notes


async def test_a_stop_at_a_confirmation_prompt_is_kept_while_the_state_is_locked(world, talk):
    conversation = confirming(talk(asks(hold("danger", "one")), says("done")))
    world.release("danger")
    await conversation.arun()
    locked, may_go_on = threading.Event(), threading.Event()

    def lock():
        with conversation.state:
            locked.set()
            may_go_on.wait(DEADLINE)

    thread = threading.Thread(target=lock)
    thread.start()
    locked.wait(DEADLINE)
    conversation.interrupt()  # does not wait for it
    may_go_on.set()
    thread.join(DEADLINE)
    await conversation.arun()
    assert run_of(conversation).outcome.status == "stopped"
    assert "one" in refusals(conversation)
    await conversation.arun()
    assert "enter danger" not in world.notes
    assert status(conversation) == "finished"


@pytest.mark.parametrize("is_async", [True, False], ids=["arun", "run"])
async def test_a_stop_that_comes_with_the_prompt_refuses_the_action(world, tmp_path, is_async):
    """The callback of the action that waits is the last code of the run."""

    def on_event(event):
        if type(event).__name__ == "ActionEvent":
            run_of(conversation).stop("immediate", "not that")

    conversation = confirming(
        supervise(converse(tmp_path, asks(hold("danger", "one")), says("done"), callbacks=[on_event]))
    )
    world.release("danger")
    await (conversation.arun() if is_async else asyncio.to_thread(conversation.run))
    assert status(conversation) == "paused"
    conversation.send_message("go on")
    await conversation.arun()
    assert status(conversation) == "finished"
    assert "enter danger" not in world.notes
    conversation.close()


async def test_a_confirmation_without_a_stop_executes_the_action(world, talk):
    conversation = confirming(talk(asks(hold("fine", "one")), says("done")))
    world.release("fine")
    await conversation.arun()
    await conversation.arun()
    assert answers(conversation) == {"one": "fine done"}
    assert status(conversation) == "finished"


def refusals(conversation):
    events = conversation.state.events
    return {event.tool_call_id: event.rejection_reason for event in events if isinstance(event, UserRejectObservation)}


def test_ctrl_c_in_a_sync_run_stops_it_and_leaves_a_conversation_that_goes_on(world, talk):
    conversation = talk(asks(hold("a", "one", obeys=True)), says("done"))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press():
        world.seen("enter a")
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            conversation.run()
    finally:
        pressing.join(DEADLINE)
        signal.signal(signal.SIGINT, previous)
    run = run_of(conversation)
    assert run.outcome.status == "stopped", run.receipt
    assert run.outcome.reason.kind == "shutdown"
    assert "obeyed a" in world.notes
    assert status(conversation) == "paused"
    assert set(answers(conversation)) == {"one"}
    conversation.send_message("again")
    conversation.run()
    assert status(conversation) == "finished"


async def test_an_interrupt_cancels_the_token_of_openhands_too(world, talk):
    conversation = talk(asks(hold("a", obeys=True)), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    theirs = conversation._cancel_token
    assert not theirs.is_cancelled
    conversation.interrupt()
    assert theirs.is_cancelled
    await running
    assert conversation._cancel_token.is_cancelled


async def test_any_stop_leaves_a_cancelled_token_of_openhands(world, talk):
    conversation = talk(asks(hold("a", obeys=True)), says("done"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    run_of(conversation).stop("immediate", "enough")
    await running
    assert conversation._cancel_token.is_cancelled

"""G13: force hits only this run's code; cancels are counted per task."""

import asyncio

import pytest
from tests.participant_kinds import Groups

import stoppable
from stoppable.testing.scripts import Effect, Return


async def test_a_cancel_for_a_child_that_has_ended_does_not_hit_its_parent():
    """CANCEL is queued for the child; the child ends before the loop comes to it; the parent works on in that task."""

    async def child():
        return "done"

    async def parent():
        run = None

        async def body():
            nonlocal run
            run = stoppable.current_run()
            run.stop("cooperative")
            return await child()

        await stoppable.call(body)
        run_main = asyncio.current_task()
        # The callback that the control thread had queued arrives only now.
        participant = stoppable.current_run().main
        participant._cancel(stoppable.Rung.CANCEL, run)
        await asyncio.sleep(0)
        return run_main.cancelling()

    assert await (await stoppable.spawn(parent)).result() == 0


async def test_force_on_one_run_leaves_a_hundred_others_alone(clock):
    release = asyncio.Event()

    async def agent():
        await release.wait()
        return "value"

    handles = [await stoppable.spawn(agent) for _ in range(100)]
    await asyncio.sleep(0)
    await handles[50].stop("kill")
    assert (await handles[50].outcome()).status == "stopped"
    clock.advance(100)
    release.set()
    others = [await handle.outcome() for handle in handles if handle is not handles[50]]
    assert {outcome.status for outcome in others} == {"completed"}


async def test_a_child_stopped_by_force_lets_its_parent_go_on_in_the_same_task():
    async def child():
        stoppable.current_run().stop("immediate")
        await asyncio.sleep(60)

    async def parent():
        with pytest.raises(stoppable.RunStopped):
            await stoppable.call(child)
        await asyncio.sleep(0.01)
        with stoppable.boundary("tool"):
            await asyncio.sleep(0)
        return "went on"

    assert await (await stoppable.spawn(parent)).result() == "went on"


async def test_the_same_task_can_be_cancelled_again_for_another_run():
    async def child():
        stoppable.current_run().stop("immediate")
        await asyncio.sleep(60)

    async def parent():
        for _ in range(3):
            with pytest.raises(stoppable.RunStopped):
                await stoppable.call(child)
        stoppable.current_run().stop("immediate")
        await asyncio.sleep(60)

    outcome = await (await stoppable.spawn(parent)).outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "cancel")


async def test_work_that_was_detached_is_not_hit():
    finished = asyncio.Event()
    tasks = []

    async def background():
        with stoppable.boundary("store", "flush"):
            await asyncio.sleep(0.05)
        finished.set()

    async def agent():
        async with stoppable.detached():
            tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0.01)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    await asyncio.gather(*tasks)
    assert finished.is_set()


@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_force_on_one_process_group_leaves_those_of_its_siblings_and_strangers_alone(mode, tmp_path):
    kind = Groups()
    probe = kind.probe(tmp_path)
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    async with stoppable.open_run("parent") as parent:
        children = [await kind.start([Effect(f"work {n}"), Return(n)], probe) for n in range(3)]
        for n in range(3):
            await probe.seen(f"enter work {n}")
        await children[1].stop(mode)
        assert (await children[1].outcome()).status == "stopped"
        assert stranger.returncode is None
        probe.release()
        assert [await child.result() for child in (children[0], children[2])] == [0, 2]
    assert parent.status == "completed"
    assert "leave work 1" not in probe.notes
    stranger.kill()
    assert await stranger.wait() == -9

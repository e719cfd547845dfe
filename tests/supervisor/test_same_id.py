"""An id may be asked for more than once: whatever is told by it is told to the run that the store has under it."""

import asyncio

from tests.waiting import until

from stoppable import Supervisor

from .kept_agents import forever, steps


async def test_a_stop_of_a_run_elsewhere_reaches_it_though_its_start_is_being_repeated_here(tmp_path):
    """G14, G1: what answers for its gate is the worker that executes it, and not a start that comes to nothing."""
    go = asyncio.Event()

    async def agent():
        return await steps(2, go)

    file = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Supervisor(file) as there, Supervisor(file) as here:
        for number in range(5):
            run_id = f"run-{number}"
            first = await there.start(agent, run_id=run_id)
            await until(lambda: first.run.in_flight)
            again = asyncio.create_task(here.start(agent, run_id=run_id))
            await asyncio.sleep(0)
            receipt = await here.stop(run_id)
            assert (receipt.in_flight, first.run.token.stopped) == (("tool:step",), True)
            assert receipt.acknowledged_at is not None
            go.set()
            assert (await first.outcome()).status == (await (await again).outcome()).status == "stopped"
            go.clear()


async def test_a_stop_of_many_elsewhere_answers_for_them_and_not_for_repeated_starts(tmp_path):
    file = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Supervisor(file) as there, Supervisor(file) as here:
        first = await there.start(forever, run_id="x", owner="me")
        again = asyncio.create_task(here.start(forever, run_id="x", owner="me"))
        await asyncio.sleep(0)
        (receipt,) = await here.stop_where(owner="me")
        assert receipt.acknowledged_at is None or first.run.token.stopped
        assert (await first.outcome()).status == "stopped"
        await again


async def test_a_stop_that_comes_while_its_run_is_being_registered_reaches_it(store):
    async with Supervisor(store) as supervisor:
        for number in range(20):
            starting = asyncio.create_task(supervisor.start(forever, run_id=f"mine-{number}"))
            await asyncio.sleep(0)
            receipt = await supervisor.stop(f"mine-{number}", reason="enough")
            assert receipt.answer == "accepted"
            assert receipt.acknowledged_at is not None
            outcome = await (await starting).outcome()
            assert (outcome.status, outcome.reason.message) == ("stopped", "enough")

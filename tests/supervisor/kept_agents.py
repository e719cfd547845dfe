"""Agents that supervisors keep in these tests, and what the tests ask of them."""

import stoppable


async def forever():
    await stoppable.sleep(3600)


async def steps(count, go=None):
    for number in range(count):
        async with stoppable.boundary("tool", "step"):
            if go is not None:
                await go.wait()
        stoppable.append_partial(f"{number} ")
    return count


async def raises(error):
    raise error


async def types(supervisor, run_id, after=0):
    return [event.type async for event in supervisor.events(run_id, after)]

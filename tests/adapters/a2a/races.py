"""A cancel that races with the end of its task: do the answer, the stream and the store tell the same?"""

import asyncio

from a2a.utils.errors import TaskNotCancelableError

from .executors import SaysCanceled
from .serving import SECONDS, state_of

RACES = {"graceful": 200, "immediate": 150}
_STEP_SECONDS = 0.0004
_ENDS = {"COMPLETED", "CANCELED", "FAILED"}


class Races(SaysCanceled):
    """Completes when it is let go; its own cancel says that the task is canceled."""


async def race(server, inner, number, seconds=SECONDS):
    """Cancel a task, let it end a little later, and return what was told of it if that does not agree, else None."""
    inner.working.clear()
    inner.go.clear()
    stream = server.stream()
    task_id = await stream.started()
    await inner.working.wait()
    canceling = asyncio.create_task(_answer(server, task_id, seconds))
    asyncio.get_running_loop().call_later(_STEP_SECONDS * (number % 25), inner.go.set)
    answer = await canceling
    await asyncio.wait({stream.task}, timeout=seconds)
    is_open = not stream.task.done()
    await stream.leave()
    ends = [state for state in stream.states if state in _ENDS]
    stored = await server.state(task_id)
    # Not cancelable is told of a task that has ended in another way.
    agrees = stored == "COMPLETED" if answer == "not cancelable" else stored == answer == "CANCELED"
    return None if agrees and ends == [stored] and not is_open else (answer, stored, ends, "open" if is_open else "")


async def _answer(server, task_id, seconds):
    try:
        async with asyncio.timeout(seconds):
            return state_of(await server.cancel(task_id))
    except TaskNotCancelableError:
        return "not cancelable"
    except TimeoutError:
        return "no answer"

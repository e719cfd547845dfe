"""How a stop reaches running code: asyncio tasks, threads, processes, and the control thread that climbs the ladder."""

import asyncio

from stoppable._core import participants
from stoppable._engine import control, draining, hooks, ladder, tasks
from stoppable._engine.plain import library

participants.attend = tasks.attend
participants.cancels = (asyncio.CancelledError,)
participants.climb = ladder.climb
participants.current_task = tasks.current_task
participants.dispatch = control.dispatch
participants.hold_back = draining.hold_back
participants.in_loop = hooks.in_loop
participants.join = tasks.join
participants.library_threads = library.alive_in
participants.participant = tasks.current
participants.is_worker_thread = tasks.is_worker_thread

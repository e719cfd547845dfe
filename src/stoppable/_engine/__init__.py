"""L1: how a stop reaches running code: asyncio tasks, threads, and the one control thread that climbs the ladder."""

import asyncio

from stoppable._core import port
from stoppable._engine import control, hooks, ladder, tasks

port.attend = tasks.attend
port.cancels = (asyncio.CancelledError,)
port.climb = ladder.climb
port.current_task = tasks.current_task
port.dispatch = control.dispatch
port.in_loop = hooks.in_loop
port.join = tasks.join
port.participant = tasks.current
port.is_worker_thread = tasks.is_worker_thread

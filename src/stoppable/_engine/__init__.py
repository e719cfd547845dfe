"""How a stop reaches running code: asyncio tasks, threads, processes, and the control thread that climbs the ladder."""

from stoppable._core import participants
from stoppable._engine.asyncio_engine import AsyncioEngine

participants.engine = AsyncioEngine()

"""An arq worker with one job that goes on until it is aborted, and says when that reached it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, ClassVar

from arq import run_worker
from arq.connections import RedisSettings

from reports import Report


async def forever(_context: dict[Any, Any]) -> None:
    report = Report.of_environment()
    try:
        report.send("ready")
        await asyncio.sleep(3600)
    finally:
        report.send(str(time.monotonic()))


class Settings:
    functions: ClassVar = [forever]
    allow_abort_jobs = True
    redis_settings = RedisSettings.from_dsn(os.environ["PEER_BROKER"])


if __name__ == "__main__":
    run_worker(Settings)

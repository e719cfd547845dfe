"""A DBOS process whose workflow goes on until it is cancelled, and says when that reached it.

Its step may be cancelled while it waits, which is the fastest way that DBOS has.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from dbos import DBOS, DBOSConfig, SetWorkflowID

from reports import Report


@DBOS.step(preemptible=True)
async def wait() -> None:
    report = Report.of_environment()
    try:
        report.send("ready")
        await asyncio.sleep(3600)
    finally:
        report.send(str(time.monotonic()))


@DBOS.workflow()
async def forever() -> None:
    await wait()


async def main() -> None:
    config: DBOSConfig = {"name": "peer", "system_database_url": os.environ["PEER_DATABASE"], "log_level": "ERROR"}
    DBOS(config=config)
    DBOS.launch()
    while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
        with SetWorkflowID(name):
            await DBOS.start_workflow_async(forever)


if __name__ == "__main__":
    asyncio.run(main())

"""A process of its own that executes runs on a shared store; told what to do by lines on its standard input."""

import asyncio
import json
import os
import sys
import threading

from fault_agents import AGENTS

from stoppable import Supervisor
from stoppable.stores.sqlite import SqliteStore


def say(**message):
    print(json.dumps(message), flush=True)


async def main(path, ttl):
    loop = asyncio.get_running_loop()
    async with Supervisor(SqliteStore(path), ttl=ttl) as supervisor:
        say(ready=os.getpid())
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            ask = json.loads(line)
            match ask.pop("do"):
                case "start":
                    handle = await supervisor.start(AGENTS[ask["agent"]], *ask.get("args", ()), owner=ask.get("owner"))
                    while handle.status == "pending":
                        await asyncio.sleep(0.001)
                    say(started=handle.id)
                case "stop":
                    receipt = await supervisor.stop(ask["run"], ask.get("mode", "graceful"))
                    say(receipt=receipt.answer)
                case "threads":
                    say(threads=threading.active_count())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))

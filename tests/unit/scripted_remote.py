"""A service in a process of its own, with jobs that behave as their script says when they are told to stop.

It speaks JSON lines. ``start`` keeps its connection and tells the id and the states of the job on it; ``stop``,
``reveal``, ``finish`` and ``told`` are answered with one line each.
"""

import asyncio
import json
import os
import sys


class Job:
    def __init__(self, number, script):
        self.id = f"job-{number}"
        self.script = script
        self.told = []
        self.lines = asyncio.Queue()
        self.state = "working"
        if script != "shy":
            self.reveal()

    def reveal(self):
        self.lines.put_nowait({"id": self.id, "state": "working"})

    def become(self, state):
        if self.state == "working":
            self.state = state
            self.lines.put_nowait({"state": state})

    async def stop(self, order):
        self.told.append(order)
        match self.script:
            case "refuses":
                return {"error": "not cancelable"}
            case "fails once" if len(self.told) == 1:
                return {"error": "internal"}
            case "hangs":
                await asyncio.Event().wait()
            case "dies":
                os._exit(1)
            case "finishes":
                self.become("completed")
            case "takes its time":
                pass
            case _:
                self.become("canceled")
        return {"state": self.state}


class Service:
    def __init__(self):
        self.jobs = []

    async def serve(self, reader, writer):
        asked = json.loads(await reader.readline())
        if asked["op"] == "start":
            job = Job(len(self.jobs) + 1, asked["script"])
            self.jobs.append(job)
            while True:
                line = await job.lines.get()
                await send(writer, line)
                if line["state"] != "working":
                    break
        else:
            await send(writer, await self.answer(asked))
        writer.close()

    async def answer(self, asked):
        match asked:
            case {"op": "stop", "id": id_}:
                job = next(job for job in self.jobs if job.id == id_)
                return await job.stop({"mode": asked["mode"], "grace": asked["grace"], "reason": asked["reason"]})
            case {"op": "reveal"}:
                self.jobs[-1].reveal()
            case {"op": "finish"}:
                self.jobs[-1].become("completed")
        return {"told": self.jobs[-1].told}


async def send(writer, value):
    writer.write(json.dumps(value).encode() + b"\n")
    await writer.drain()


async def main():
    server = await asyncio.start_server(Service().serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    parent = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with server:
        await parent  # it dies with whoever started it


if __name__ == "__main__":
    asyncio.run(main())

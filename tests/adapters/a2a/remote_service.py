"""A server in a process of its own, which may be frozen and killed; prints its address."""

import asyncio
import os
import warnings

os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")
warnings.simplefilter("ignore")

import stoppable  # noqa: E402

from .executors import Scripted  # noqa: E402
from .serving import served  # noqa: E402


async def main():
    async with stoppable.Supervisor() as supervisor, served(Scripted(), supervisor) as server:
        print(server.url + "/", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

"""A server in a process of its own, which may be frozen, killed and terminated; prints its address.

With a folder it keeps its tasks there, and is served as the page about A2A says; or plain, with that word after it.
"""

import asyncio
import contextlib
import os
import socket
import sys
import warnings

os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")
warnings.simplefilter("ignore")

# E402: what is set above must be set before these are imported
import uvicorn  # noqa: E402
from starlette.applications import Starlette  # noqa: E402

import stoppable  # noqa: E402
from stoppable.adapters.a2a import StoppableExecutor, StoppableRequestHandler  # noqa: E402

from .executors import Scripted  # noqa: E402
from .serving import PATIENT, app_of, card_for, served  # noqa: E402


async def in_memory():
    async with stoppable.Supervisor() as supervisor, served(Scripted(), supervisor) as server:
        print(server.url + "/", flush=True)
        await asyncio.Event().wait()


def in_folder(folder, *, is_plain):
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.tasks import DatabaseTaskStore
    from sqlalchemy.ext.asyncio import create_async_engine

    supervisor = stoppable.Supervisor()
    listener = socket.create_server(("127.0.0.1", 0))
    card = card_for("http://{}:{}/".format(*listener.getsockname()[:2]))

    @contextlib.asynccontextmanager
    async def lifespan(app):
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/tasks.db")
        store = DatabaseTaskStore(engine)
        await store.initialize()
        if is_plain:
            handler = DefaultRequestHandler(Scripted(), store, card)
        else:
            handler = StoppableRequestHandler(StoppableExecutor(Scripted(), supervisor, policy=PATIENT), store, card)
        app.router.routes.extend(app_of(handler, card).routes)
        async with supervisor:
            print(card.supported_interfaces[0].url, flush=True)
            yield
            await (handler.aclose() if is_plain else handler.close())
        await engine.dispose()

    config = uvicorn.Config(Starlette(lifespan=lifespan), log_config=None, timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1:]:
        in_folder(sys.argv[1], is_plain="plain" in sys.argv[2:])
    else:
        asyncio.run(in_memory())

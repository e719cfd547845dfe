"""A chat with history, tools and a Stop button: `python main.py`, then open http://127.0.0.1:8000/."""

from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse
from graph import graph

from stoppable.adapters.langgraph.agents import plain
from stoppable.server import Principal, router, ui
from stoppable.supervisor import Supervisor

supervisor = Supervisor()


@asynccontextmanager
async def lifespan(_app):
    async with supervisor:
        yield


async def who() -> Principal:  # whatever your app does to know its users
    return Principal(owner="ann", actor="ann")


app = FastAPI(lifespan=lifespan)
app.include_router(router(supervisor, graph, principal=who), prefix="/agents")
app.include_router(ui("/agents"))


@app.get("/")
async def page():
    return FileResponse(Path(__file__).parent / "chat.html")


@app.get("/threads/{thread_id}")
async def history(thread_id: str):
    state = await graph.aget_state({"configurable": {"thread_id": thread_id}})
    return plain(state.values.get("messages", []))


if __name__ == "__main__":
    uvicorn.run(app, port=8000)

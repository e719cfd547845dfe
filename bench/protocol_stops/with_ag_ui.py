"""AG-UI: the client of npm, and a server on the events of ag-ui-protocol, as its quickstart is written.

Its author thinks of clients that leave: the task of the agent is cancelled with the stream.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from ag_ui.core import (
    EventType,
    RunAgentInput,
    RunFinishedEvent,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)
from ag_ui.encoder import EventEncoder
from bench.protocol_stops import plain
from bench.protocol_stops.agent import answer
from bench.protocol_stops.page import Page
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()


@app.post("/agui/research")
async def research(given: RunAgentInput) -> StreamingResponse:
    encoder, words = EventEncoder(), asyncio.Queue[str | None]()
    ids = {"thread_id": given.thread_id, "run_id": given.run_id}
    message = f"answer to {given.run_id}"

    async def work() -> None:
        await words.put(await answer(str(given.messages[-1].content), words.put))
        await words.put(None)

    async def events() -> AsyncIterator[str]:
        task = asyncio.create_task(work())
        try:
            yield encoder.encode(RunStartedEvent(type=EventType.RUN_STARTED, **ids))
            yield encoder.encode(
                TextMessageStartEvent(type=EventType.TEXT_MESSAGE_START, message_id=message, role="assistant")
            )
            while (word := await words.get()) is not None:
                yield encoder.encode(
                    TextMessageContentEvent(type=EventType.TEXT_MESSAGE_CONTENT, message_id=message, delta=word)
                )
            yield encoder.encode(TextMessageEndEvent(type=EventType.TEXT_MESSAGE_END, message_id=message))
            yield encoder.encode(RunFinishedEvent(type=EventType.RUN_FINISHED, **ids))
        finally:
            task.cancel()

    return StreamingResponse(events(), media_type=encoder.get_content_type())


def opened(url: str) -> Page:
    return Page("ag_ui.mjs", "@ag-ui/client/dist/index.js", f"{url}/agui/research")


if __name__ == "__main__":
    sys.exit(plain.serve(app))

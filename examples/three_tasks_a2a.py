"""Three A2A tasks of ten steps side by side: B is canceled after three, A and C complete.

In one terminal, in this folder:   stoppable serve three_tasks_a2a
In another:                        python three_tasks_a2a.py http://127.0.0.1:8420
"""

import asyncio
import os
import sys

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.types import CancelTaskRequest, Message, Part, Role, SendMessageRequest, TaskState

import stoppable

SECONDS = float(os.environ.get("STEP_SECONDS", "1"))


@stoppable.agent
async def stepper(label: str) -> str:
    """Take ten steps."""
    for step in range(1, 11):
        await stoppable.sleep(SECONDS)  # wakes at once on a stop
        stoppable.append_partial(f"{label}{step} ")
    return "ten steps"


async def follow(client, label: str) -> str:
    message = Message(message_id=label, role=Role.ROLE_USER, parts=[Part(text=label)])
    chunks, state = 0, None
    async for event in client.send_message(SendMessageRequest(message=message)):
        if event.HasField("status_update"):
            state = event.status_update.status.state
        if event.HasField("artifact_update"):
            chunks += 1
            if label == "B" and chunks == 3:
                task = await client.cancel_task(CancelTaskRequest(id=event.artifact_update.task_id))
                print(f"B: the cancel was answered with {TaskState.Name(task.status.state)}")
    return f"{label}: {TaskState.Name(state)} after {'all' if chunks > 10 else 'some'} of its steps"


async def main(url: str) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        client = await ClientFactory(ClientConfig(httpx_client=http)).create_from_url(url)
        for line in await asyncio.gather(*(follow(client, label) for label in "ABC")):
            print(line)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

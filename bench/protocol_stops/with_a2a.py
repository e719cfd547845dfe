"""A2A: the client of a2a-sdk, and a server of it whose executor cancels as the samples of the SDK do."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import AsyncIterator

os.environ["OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"] = "false"

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import CancelTaskRequest, GetTaskRequest, Message, Part, Role, SendMessageRequest, Task, TaskState
from a2a.utils.errors import A2AError
from bench.protocol_stops import plain
from bench.protocol_stops.agent import answer
from bench.protocol_stops.conversation import SECONDS, Told
from tests.adapters.a2a.executors import SaysCanceled
from tests.adapters.a2a.serving import Stream, app_of, card_for, state_of


class Research(SaysCanceled):
    """An executor on the SDK alone."""

    async def work(self, context, updater):
        has_words = False

        async def say(word: str) -> None:
            nonlocal has_words
            await updater.add_artifact([Part(text=word)], artifact_id="words", append=has_words)
            has_words = True

        await updater.add_artifact([Part(text=await answer(context.get_user_input(), say))], artifact_id="result")


class A2A:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._context = self._task_id = ""
        self._stream: Stream

    def _send(self, text: str):
        message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)])
        message.context_id = self._context
        return self._client.send_message(SendMessageRequest(message=message))

    async def begin(self, text: str) -> None:
        self._stream = Stream(self._send(text))
        self._task_id = await self._stream.started()
        self._context = (await self._task()).context_id

    async def cancel(self) -> Told:
        try:
            state = state_of(await self._client.cancel_task(CancelTaskRequest(id=self._task_id)))
        except A2AError as error:
            state = type(error).__name__
        return Told(words=f"`{state.lower()}`", is_end=True)

    async def end(self) -> str:
        return ""

    async def ask(self, text: str) -> str:
        stream = Stream(self._send(text))
        await stream.ended()
        task = await self._client.get_task(GetTaskRequest(id=stream.task_id))
        assert task.status.state == TaskState.TASK_STATE_COMPLETED, state_of(task)
        return _text(task)

    async def kept(self) -> str:
        return _text(await self._task())

    async def leave(self) -> None:
        await self._stream.leave()

    async def _task(self) -> Task:
        return await self._client.get_task(GetTaskRequest(id=self._task_id))


def _text(task: Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[A2A]:
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        conversation = A2A(await ClientFactory(ClientConfig(httpx_client=http)).create_from_url(url))
        yield conversation
        await conversation.leave()


def main() -> None:
    listener, port = plain.bound()
    card = card_for(f"http://127.0.0.1:{port}/")
    plain.serve(app_of(DefaultRequestHandler(Research(), InMemoryTaskStore(), card), card), listener)


if __name__ == "__main__":
    sys.exit(main())

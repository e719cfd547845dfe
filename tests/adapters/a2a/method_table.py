"""What each caller may do with a task of another, by every A2A method, found out by asking a real server.

``python -m tests.adapters.a2a.method_table`` writes it into the docs.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import Request

import stoppable
from stoppable.adapters.a2a import Exposed
from stoppable.server import Principal, Scope, create_app

from .serving import PATIENT, SECONDS, listening

PAGE = Path(__file__).parents[3] / "docs/how-to/a2a.md"
BEGIN, END = "<!-- methods: generated -->\n", "<!-- methods: end -->\n"
CALLERS = {"owner": "ann", "another owner": "bob"}
V1 = {"A2A-Version": "1.0"}
SCOPES = [scope.value for scope in Scope]


@stoppable.agent
async def sleeper(text: str):
    """Wait for a stop."""
    await stoppable.sleep(600)


def principal(request: Request) -> Principal:
    return Principal(owner=request.headers["x-owner"], scopes=request.headers.get("x-scopes", " ".join(SCOPES)))


def named(task):
    return {"id": task["taskId"]}


def nothing(_task):
    return {}


def message_1(task):
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "begin"}], **task}
    return {"message": message, "configuration": {"returnImmediately": True}}


def message_03(task):
    parts = [{"kind": "text", "text": "begin"}]
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": parts, **task}
    return {"message": message, "configuration": {"blocking": False}}


@dataclass(frozen=True)
class Row:
    """A request about a task of ann."""

    dialect: str
    name: str
    params: object
    shows: bool = False
    """It lists tasks, and is always answered."""


ROWS = [
    Row("1.0", "SendMessage", message_1),
    Row("1.0", "SendStreamingMessage", message_1),
    Row("1.0", "GetTask", named),
    Row("1.0", "ListTasks", nothing, shows=True),
    Row("1.0", "SubscribeToTask", named),
    Row("1.0", "CancelTask", named),
    Row("0.3", "message/send", message_03),
    Row("0.3", "message/stream", message_03),
    Row("0.3", "tasks/get", named),
    Row("0.3", "tasks/resubscribe", named),
    Row("0.3", "tasks/cancel", named),
    Row("REST", "POST /message:send", message_1),
    Row("REST", "POST /message:stream", message_1),
    Row("REST", "GET /tasks/{id}", nothing),
    Row("REST", "GET /tasks", nothing, shows=True),
    Row("REST", "POST /tasks/{id}:subscribe", nothing),
    Row("REST", "POST /tasks/{id}:cancel", nothing),
    Row("0.1", "tasks/get", named),
    Row("0.1", "tasks/list", nothing, shows=True),
    Row("0.1", "tasks/cancel", named),
]
"""Without those of 0.1 that send a message: there a client chooses the ids of its tasks, which are its own."""


class Table:
    """Asks a server what each caller may do."""

    def __init__(self, http):
        self._http = http

    async def _task(self):
        """Return the id of a task of ann that is at work."""
        answer = await self._http.post("/message:send", json=message_1({}), headers={**V1, "x-owner": "ann"})
        return answer.json()["task"]["id"]

    async def ask(self, row, user, scopes=SCOPES):
        """Return the error, or None, and whether the task is in the answer."""
        task = await self._task()
        # A message of ann would wait until her task has ended, so it begins another one.
        params = row.params({} if user == "ann" and row.params in (message_1, message_03) else {"taskId": task})
        headers = {"x-owner": user, "x-scopes": " ".join(scopes), **(V1 if row.dialect in {"1.0", "REST"} else {})}
        if row.dialect == "REST":
            method, path = row.name.split()
            body = params if method == "POST" else None
            request = self._http.stream(method, path.format(id=task), json=body, headers=headers)
        else:
            call = {"jsonrpc": "2.0", "id": 1, "method": row.name, "params": params}
            request = self._http.stream("POST", "/", json=call, headers=headers)
        async with request as response:
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            text = await _first_event(response) if is_stream else (await response.aread()).decode()
        return json.loads(text).get("error"), task in text

    async def scopes(self, row):
        """Return the scopes without which ann is refused."""
        needed = [scope for scope in SCOPES if _lacks_scope((await self.ask(row, "ann", _without(scope)))[0])]
        assert not _lacks_scope((await self.ask(row, "ann", needed))[0]), f"{row} needs more than {needed}"
        return needed

    async def words(self, row, user):
        """Return what a caller gets."""
        error, is_shown = await self.ask(row, user)
        if error is not None:
            return f"{error['code']}" if row.dialect != "REST" else f"{error['code']} `{error['status']}`"
        return ("shown" if is_shown else "left out") if row.shows else "yes"

    async def lines(self):
        """Yield the table."""
        yield f"| protocol | method | scopes | {' | '.join(CALLERS)} |"
        yield "|---" * (3 + len(CALLERS)) + "|"
        for row in ROWS:
            scopes = ", ".join(f"`{scope}`" for scope in await self.scopes(row))
            words = [await self.words(row, user) for user in CALLERS.values()]
            yield f"| {row.dialect} | `{row.name}` | {scopes} | {' | '.join(words)} |"


def _without(scope):
    return [one for one in SCOPES if one != scope]


def _lacks_scope(error):
    return error is not None and "scope" in error["message"]


async def _first_event(response):
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            return line.removeprefix("data: ")
    raise AssertionError("an empty stream")


async def generate():
    """Return the table, as the docs have it."""
    over = Exposed({"sleeper": sleeper}, policy=PATIENT)
    async with stoppable.Supervisor() as supervisor, contextlib.AsyncExitStack() as stack:
        app = create_app(supervisor, [sleeper], routers=[over.router], services=[over.service], principal=principal)
        url = await stack.enter_async_context(listening(app, lifespan="on"))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=SECONDS))
        lines = [line async for line in Table(http).lines()]
        for run in supervisor.runs:
            run.stop("kill")
    return "\n".join(lines) + "\n"


def written():
    """Return the table in the docs."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + asyncio.run(generate()) + END + rest.partition(END)[2])

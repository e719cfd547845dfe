"""The tasks extension of MCP, on the public interface for extensions that the official client has."""

import asyncio
from typing import Any, Literal

import mcp_types as types
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import ConfigDict, Field

TASKS = "io.modelcontextprotocol/tasks"


class Task(types.Result):
    """A task as it is created."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str
    ttl: int | None = Field(alias="ttlMs")


class State(types.Result):
    """What ``tasks/get`` says."""

    task_id: str = Field(alias="taskId")
    status: str
    message: str | None = Field(default=None, alias="statusMessage")
    created_at: str = Field(alias="createdAt")
    changed_at: str = Field(alias="lastUpdatedAt")
    result: Any = None
    error: Any = None

    @property
    def text(self):
        """The text of its result."""
        return "\n".join(block["text"] for block in self.result["content"])


class _Params(types.RequestParams):
    task_id: str = Field(serialization_alias="taskId")


class _Request(types.Request[_Params, str]):
    name_param = "taskId"
    params: _Params


class Tasks(ClientExtension):
    """Says that this client takes tasks."""

    identifier = TASKS

    def claims(self):
        return [ResultClaim(result_type="task", model=Task, resolve=_never)]


async def _never(*_):
    raise AssertionError("calls are made with allow_claimed")


async def begun(client, tool, arguments=None):
    """Call a tool, and return its task."""
    return await client.session.call_tool(tool, arguments or {}, allow_claimed=True)


async def ask(client, method, task_id, kind=State):
    """Send a request about a task."""
    request = _Request(method=f"tasks/{method}", params=_Params(task_id=task_id))
    return await client.session.send_request(request, kind)


async def cancel(client, task_id):
    await ask(client, "cancel", task_id, types.EmptyResult)


async def settled(client, task_id, within=100):
    """Return the state of a task once it is not working any more."""
    async with asyncio.timeout(within):
        while (state := await ask(client, "get", task_id)).status == "working":
            await asyncio.sleep(0.01)
    return state

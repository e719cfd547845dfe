"""Run code, follow it, and stop it, over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Cookie, Depends, Header, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.responses import JSONResponse, Response

import stoppable
from stoppable.server import EventStreams, ServerLimits
from user_code import execute
from user_code.agents import Agents, UnknownAgent
from user_code.quota import Quota, TooManyRuns
from user_code.records import TraceStream, full_record, status_of, summary_of, trace_of
from user_code.settings import Settings

_CODE_LENGTH = 200_000
_HEARTBEAT = 10.0
_LISTED = 100


async def current_user(user: Annotated[str, Cookie()] = "anonymous") -> str:
    """Return whose runs and agents these are. A stand-in: put the login of your own app here."""
    return user


User = Annotated[str, Depends(current_user)]


class Body(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Variable(BaseModel):
    key: str
    value: str


class SaveBody(Body):
    name: str = Field(max_length=200)
    code: str = Field(max_length=_CODE_LENGTH)
    tools: dict[str, list[str]] = {}
    gofannon_agents: list[str] = []


class RunBody(Body):
    code: str = Field(max_length=_CODE_LENGTH)
    input_dict: dict[str, Any] = {}
    tools: dict[str, list[str]] = {}
    gofannon_agents: list[str] | None = []
    llm_settings: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    friendly_name: str | None = Field(default=None, max_length=200)
    env_vars: list[Variable] | None = None
    agent_id: str | None = Field(default=None, max_length=200)


class StopBody(Body):
    mode: Literal["cooperative", "graceful", "immediate", "kill"] = "graceful"
    reason: str = Field(default="Run was stopped by user", max_length=500)


@dataclass(slots=True, kw_only=True)
class UserCode:
    """The runs of this app."""

    supervisor: stoppable.Supervisor
    settings: Settings
    agents: Agents
    quota: Quota = field(init=False)
    streams: EventStreams = field(init=False)

    def __post_init__(self) -> None:
        self.quota = Quota(self.settings.database, self.supervisor, self.settings.user_runs)
        self.streams = EventStreams(self.supervisor, ServerLimits(heartbeat=_HEARTBEAT))

    async def start(self, body: RunBody, user: str) -> stoppable.RunHandle[Any]:
        """Start the code of a user; the run does not depend on whoever watches it."""
        if body.env_vars and self.settings.isolation != "process":
            raise HTTPException(422, "envVars need a process: agents that share one would see each other's")
        job = await self._job(body, user)
        try:
            async with self.quota.starting(user):
                return await self._start(body, user, job)
        except TooManyRuns as error:
            raise HTTPException(429, str(error)) from None

    async def _start(self, body: RunBody, user: str, job: execute.Job) -> stoppable.RunHandle[Any]:
        isolation = self.settings.isolation
        name = body.friendly_name or "sandbox_agent"
        return await self.supervisor.start(
            execute.run_in_process if isolation == "process" else execute.run_in_thread,
            name,
            body.code,
            body.input_dict,
            job,
            name=name,
            owner=user,
            labels={"agentId": body.agent_id} if body.agent_id else {},
            limits=self.settings.limits,
            policy=self.settings.policy,
            isolation=isolation,
        )

    async def _job(self, body: RunBody, user: str) -> execute.Job:
        try:
            reachable = await stoppable.to_thread(self.agents.reachable, user, body.gofannon_agents or [])
        except UnknownAgent as error:
            raise HTTPException(422, str(error)) from None
        return execute.Job(
            owner=user,
            database=self.settings.database,
            agents=reachable,
            imports=tuple(body.gofannon_agents or ()),
            tools=body.tools,
            variables={one.key: one.value for one in body.env_vars or ()},
            output_schema=body.output_schema,
            llm_settings=body.llm_settings,
            model_url=self.settings.model_url,
            memory_bytes=self.settings.memory_bytes,
            file_bytes=self.settings.file_bytes,
            trace_events=self.settings.trace_events,
            output_bytes=self.settings.output_bytes,
        )

    async def record(self, run_id: str, user: str) -> stoppable.RunRecord:
        """Return a run of a user. Another's is not found: whether it exists is nobody else's business."""
        try:
            record = await self.supervisor.get(run_id)
        except stoppable.RunNotFound:
            record = None
        if record is None or record.owner != user:
            raise HTTPException(404, "Run not found")
        return record


def run_routes(app: UserCode) -> APIRouter:
    """Return the routes that start runs."""
    made = APIRouter(prefix="/agents/run-code")

    @made.post("/stream")
    async def start_and_follow(body: RunBody, user: User) -> Response:
        handle = await app.start(body, user)
        return await app.streams.follow(handle.id, TraceStream(), tree=True)

    @made.post("/start", status_code=202)
    async def start(body: RunBody, user: User) -> dict[str, Any]:
        handle = await app.start(body, user)
        return {"runId": handle.id, "status": "running"}

    @made.post("")
    async def run(body: RunBody, user: User) -> dict[str, Any]:
        handle = await app.start(body, user)
        await handle.outcome()
        record = await app.record(handle.id, user)
        told = await full_record(app.supervisor, record)
        kept = {name: told[name] for name in ("result", "error", "schemaWarnings", "opsLog", "runId", "unconfirmed")}
        return {**kept, "outcome": status_of(record), "trace": await trace_of(app.supervisor, record)}

    return made


def history_routes(app: UserCode) -> APIRouter:
    """Return the routes about runs that were started."""
    made = APIRouter(prefix="/runs")

    @made.get("")
    async def list_runs(user: User, agent_id: str | None = None) -> dict[str, Any]:
        labels = {"agentId": agent_id} if agent_id else {}
        wanted = stoppable.Filter(owner=user, labels=labels, roots=True)
        page = await app.supervisor.list(wanted, limit=_LISTED)
        # A list has no input; this contract does.
        records = await asyncio.gather(*(app.supervisor.get(found.id) for found in page.runs))
        return {"runs": [summary_of(record) for record in records]}

    @made.get("/{run_id}")
    async def get_run(run_id: str, user: User) -> dict[str, Any]:
        return await full_record(app.supervisor, await app.record(run_id, user))

    @made.get("/{run_id}/stream")
    async def follow(run_id: str, user: User, after: int = 0, last_event_id: Annotated[int, Header()] = 0) -> Response:
        await app.record(run_id, user)
        return await app.streams.follow(run_id, TraceStream(), after=last_event_id or after, tree=True)

    @made.post("/{run_id}/stop")
    async def stop(run_id: str, user: User, body: StopBody | None = None) -> Response:
        await app.record(run_id, user)
        asked = body or StopBody()
        receipt = await app.supervisor.stop(run_id, asked.mode, asked.reason, user, owner=user)
        if receipt.answer == "already_finished":
            return JSONResponse({"runId": run_id, "status": status_of(await app.record(run_id, user))})
        is_ours = any(run.id == run_id for run in app.supervisor.runs)
        via = "flipped_local" if is_ours else "persisted_remote"
        told = {"runId": run_id, "status": "stopping", "via": via, "inFlight": list(receipt.in_flight)}
        return JSONResponse(told, status_code=202)

    return made


def agent_routes(app: UserCode) -> APIRouter:
    """Return the routes about saved agents."""
    made = APIRouter(prefix="/agents")

    @made.get("")
    def list_agents(user: User) -> list[dict[str, Any]]:
        return app.agents.of(user)

    @made.put("/{agent_id}")
    def save(agent_id: str, body: SaveBody, user: User) -> dict[str, Any]:
        app.agents.save(user, agent_id, body.model_dump(by_alias=True))
        return {"agentId": agent_id, **body.model_dump(by_alias=True)}

    return made

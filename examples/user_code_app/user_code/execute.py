"""Executes the code of a user as a run, in an agent process or on a thread of the server."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import stoppable
from user_code import cancel_token, schema, trace
from user_code.agents import Agent
from user_code.tools import DataStore, make_call_llm

_KEPT_VARIABLES = re.compile(r"STOPPABLE_|PYTHON|LC_|(PATH|HOME|LANG|TMPDIR|TZ|USER)$")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Job:
    """What a run needs besides code and input. It has no JSON form, so none of it is in the record of the run."""

    owner: str
    database: Path
    agents: Mapping[str, Agent] = field(default_factory=dict)
    """Those that are called, and those that they call in turn, by id."""
    imports: tuple[str, ...] = ()
    """The ids of those that the code itself may call."""
    tools: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    output_schema: Mapping[str, Any] | None = None
    llm_settings: Mapping[str, Any] | None = None
    model_url: str | None = None
    memory_bytes: int
    file_bytes: int
    trace_events: int
    output_bytes: int


class OutputTooLarge(ValueError):
    """The result of an agent is larger than what is kept."""


async def run_in_process(agent: str, code: str, input_dict: dict[str, Any], job: Job) -> dict[str, Any]:
    """Be the body of a run in an agent process, which belongs to it alone: so its limits are those of the process."""
    _limit(job)
    _silence_descriptors()
    for name in [name for name in os.environ if not _KEPT_VARIABLES.match(name)]:
        del os.environ[name]  # what is configured for the server is not for the code of its users
    os.environ.update(job.variables)
    with trace.room_for(job.trace_events, job.output_bytes):
        output = trace.Output()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                return await _run(agent, code, input_dict, job, print)
            finally:
                output.flush()


async def run_in_thread(agent: str, code: str, input_dict: dict[str, Any], job: Job) -> dict[str, Any]:
    """Be the body of a run on a thread of the server: no limit of memory, and code that blocks cannot be ended."""
    with trace.room_for(job.trace_events, job.output_bytes):
        output = trace.Output()
        try:
            return await _run(agent, code, input_dict, job, trace.print_to(output))
        finally:
            output.flush()


def _limit(job: Job) -> None:
    for kind, most in (
        (resource.RLIMIT_AS, job.memory_bytes),
        (resource.RLIMIT_FSIZE, job.file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))  # nobody raises a hard limit again


def _silence_descriptors() -> None:
    """Keep what is written past ``print`` out of the log of the server."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


async def _run(
    name: str, code: str, input_dict: dict[str, Any], job: Job, printing: Callable[..., None]
) -> dict[str, Any]:
    calls = {job.agents[one].name: one for one in job.imports}
    result = await _execute(Agent(name=name, code=code, tools=job.tools, calls=calls), input_dict, job, printing)
    text = json.dumps(result, default=str)
    if len(text) > job.output_bytes:
        raise OutputTooLarge(f"the result has {len(text)} characters of JSON, of which {job.output_bytes} are kept")
    told = json.loads(text)
    return {"result": told, "schemaWarnings": schema.warnings(told, job.output_schema) or None}


async def _execute(agent: Agent, input_dict: dict[str, Any], job: Job, printing: Callable[..., None]) -> Any:
    """Execute an agent, and tell when it began and how it ended, whatever happens."""
    with trace.inside(agent.name) as caller:
        trace.add("agent_start", agent_id=agent.agent_id, called_by=caller, run_id=_run_id())
        began, outcome, preview = time.monotonic(), "success", None
        try:
            async with httpx.AsyncClient(follow_redirects=True) as http_client:
                function = _load(agent, job, printing, http_client)
                result = await function(input_dict=input_dict, tools=dict(agent.tools))
            preview = json.dumps(result, default=str)[:200]
        except Exception as error:
            outcome = "error"
            trace.error(error)
            raise
        except BaseException:  # AgentStopped, a cancel, or an exit of its own
            outcome = "error"
            raise
        finally:
            if _is_stopped():
                outcome = "stopped"
            milliseconds = round((time.monotonic() - began) * 1000, 1)
            trace.add("agent_end", duration_ms=milliseconds, outcome=outcome, result_preview=preview)
        return result


def _is_stopped() -> bool:
    """Return whether the run was told to stop, however the code has ended: its record says the same."""
    run = stoppable.current_run()
    if run is None or not run.token.stopped:
        return False
    stoppable.should_stop()  # a run that has seen the stop ends as stopped
    return True


def _run_id() -> str | None:
    run = stoppable.current_run()
    return None if run is None else run.id


def _load(agent: Agent, job: Job, printing: Callable[..., None], http_client: httpx.AsyncClient) -> Callable[..., Any]:
    names: dict[str, Any] = {
        "asyncio": asyncio,
        "json": json,
        "re": re,
        "httpx": httpx,
        "http_client": http_client,
        "call_llm": make_call_llm(job.model_url, job.llm_settings),
        "data_store": DataStore(job.database, job.owner, agent.name),
        "gofannon_client": GofannonClient(agent, job, printing),
        "print": printing,
        **{name: getattr(cancel_token, name) for name in cancel_token.__all__},
    }
    exec(compile(agent.code, f"<{agent.name}>", "exec"), names)  # noqa: S102 - what this app is for
    function = names.get("run")
    if not inspect.iscoroutinefunction(function):
        raise ValueError("Code did not define an 'async def run(input_dict, tools)' function.")
    return function


class GofannonClient:
    """Calls other agents by name: each call is a child run, which stops with its caller and can be stopped alone."""

    def __init__(self, agent: Agent, job: Job, printing: Callable[..., None]) -> None:
        self._agent, self._job, self._printing = agent, job, printing

    async def call(self, agent_name: str, input_dict: dict[str, Any]) -> Any:
        """Run another agent and return its result.

        Its errors are raised as they are. If it alone was stopped, that is a RunStopped, which is an Exception and may
        be survived; a stop of the caller goes through both.
        """
        agent = self._job.agents.get(self._agent.calls.get(agent_name, ""))
        if agent is None:
            raise ValueError(f"Gofannon agent '{agent_name}' not found or not imported for this run.")

        @stoppable.agent(name=agent.name, labels={"agentId": agent.agent_id or ""})
        async def chained() -> Any:
            run = stoppable.current_run()
            assert run is not None, "it is called in a run"
            run.annotate(inputDict=input_dict)
            return await _execute(agent, input_dict, self._job, self._printing)

        return await chained()

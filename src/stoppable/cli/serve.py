"""``stoppable serve``: agents behind HTTP."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from stoppable import _secrets
from stoppable._core.values import new_id
from stoppable._engine.instrumentation.install import instrument
from stoppable.cli import find_agent, options, protocols, screen
from stoppable.cli.exits import CommandError, reports_errors

if TYPE_CHECKING:
    from stoppable.server import ServerLimits

_DEFAULT_URL = "http://127.0.0.1:8420"
_DEMO_STORE = "sqlite:///stoppable-demo.db"


@reports_errors
def serve(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE|MODULE:ATTR]", help="Every @agent of a module, or an agent, a list or a dict."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve agents that show every case of a stop.")] = False,
    store: options.Store = None,
    ttl: Annotated[
        float, typer.Option("--ttl", metavar="SECONDS", help="How long its lease lasts without a heartbeat.")
    ] = 30.0,
    keep_days: Annotated[
        float | None, typer.Option("--keep-days", metavar="DAYS", min=0, help="Forget runs that ended longer ago.")
    ] = None,
    keep_input: Annotated[
        bool, typer.Option("--keep-input/--no-keep-input", help="Keep the arguments of runs in their records.")
    ] = True,
    host: Annotated[str, typer.Option("--host", help="Other than loopback needs STOPPABLE_API_KEY.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8420,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", metavar="URL", help="A page that may call it; several times.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", metavar="NAME", help="A name it answers to without a key.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=NUMBER", help="A bound of ServerLimits, as in owner_runs=50."),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")] = False,
    a2a: Annotated[
        bool, typer.Option("--a2a/--no-a2a", help="Offer the agents over A2A too, at /a2a, if that is installed.")
    ] = True,
    openai: Annotated[
        bool, typer.Option("--openai/--no-openai", help="Offer the agents over the OpenAI API too, at /v1.")
    ] = True,
    mcp: Annotated[
        bool,
        typer.Option("--mcp/--no-mcp", help="Offer the agents as tools of MCP too, at /mcp, if that is installed."),
    ] = True,
    agui: Annotated[bool, typer.Option("--agui/--no-agui", help="Offer the agents over AG-UI too, at /agui.")] = True,
    langgraph: Annotated[
        bool, typer.Option("--langgraph/--no-langgraph", help="Offer the agents over the LangGraph API too, at /lg.")
    ] = True,
    vercel: Annotated[
        bool, typer.Option("--vercel/--no-vercel", help="Offer the agents to Vercel's AI SDK too, at /vercel.")
    ] = True,
    metrics: Annotated[
        bool, typer.Option("--metrics/--no-metrics", help="Offer metrics to Prometheus at /metrics, if installed.")
    ] = True,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="PROTOCOL", help="a2a, agui, langgraph, mcp, openai, vercel: no others; or http."
        ),
    ] = None,
    a2a_grpc_port: Annotated[
        int | None,
        typer.Option("--a2a-grpc-port", min=0, max=65535, help="Offer A2A over gRPC too, there; 0 takes a free one."),
    ] = None,
) -> None:
    """Serve agents, to start, watch and stop their runs over HTTP."""
    if target is None and not demo:
        raise CommandError("say what to serve: a module with agents, as in `stoppable serve my_agents`, or --demo")
    from stoppable.server import serve as serve_http  # noqa: PLC0415 - it needs an extra

    with contextlib.ExitStack() as stack:
        key = stack.enter_context(_secrets.hide(store))  # before anything of the agents runs: they must not inherit it
        instrument()  # before the agents are imported, which may say otherwise
        agents: dict[str, Callable[..., Any]] = {} if target is None else find_agent.agents(target)
        if demo:
            from stoppable.demo import AGENTS, demo_model  # noqa: PLC0415 - only here

            agents |= AGENTS
            stack.enter_context(demo_model())
            store = store or _DEMO_STORE

        options = {
            "a2a": a2a,
            "agui": agui,
            "langgraph": langgraph,
            "mcp": mcp,
            "openai": openai,
            "vercel": vercel,
        }
        names = protocols.wanted(options, only or ())
        names |= {"metrics"} if metrics else set()
        offer = protocols.offer(names, agents, host, a2a_grpc_port)

        def ready(url: str) -> None:
            greet(url, agents, is_demo=demo, store=store, has_key=key is not None, offer=offer)

        serve_http(
            agents,
            store=store,
            ttl=ttl,
            keep_days=keep_days,
            keep_input=keep_input,
            host=host,
            port=port,
            log_json=log_json,
            ready=ready,
            limits=_limits(limit or ()),
            allowed_origins=origin or (),
            allowed_hosts=allowed_host or (),
            routers=offer.routers,
            services=offer.services,
        )


def _limits(texts: Sequence[str]) -> ServerLimits:
    from stoppable.server import ServerLimits  # noqa: PLC0415 - it needs an extra

    kinds = {field.name: field.type for field in fields(ServerLimits)}
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in kinds:
            raise CommandError(f"{name!r} is not a limit: use one of {', '.join(kinds)}")
        try:
            number = int(value) if kinds[name] == "int" else float(value)
        except ValueError:
            raise CommandError(f"{text!r} is not a limit: use NAME=NUMBER, as in owner_runs=50") from None
        if not 0 <= number < math.inf:
            raise CommandError(f"{text!r} is not a limit: use a number from 0 up")
        values[name] = number
    return ServerLimits(**values)


def greet(
    url: str,
    agents: Mapping[str, Any],
    *,
    is_demo: bool,
    store: str | None,
    has_key: bool,
    offer: protocols.Offer,
) -> None:
    """Say where the server is and what to try."""
    from stoppable.stores.urls import without_password  # noqa: PLC0415 - not for --help

    place = "memory" if store is None else without_password(store)
    lines = [f"stoppable serves {', '.join(agents)}", f"  at {url}", f"  kept in {place}"]
    lines += offer.lines(url)
    if is_demo:
        from stoppable.demo.agents import is_scripted  # noqa: PLC0415 - only here

        lines.append(
            "  model: " + ("scripted (OPENAI_BASE_URL and OPENAI_MODEL name a real one)" if is_scripted() else "real")
        )
    first = "research" if is_demo else next(iter(agents))
    run = f"try-{new_id()[:6]}"
    example = example_input(agents[first])
    body = {"agent": first, **({"input": example} if example else {}), "runId": run}
    curl = "curl -s" + (' -H "authorization: Bearer $STOPPABLE_API_KEY"' if has_key else "")
    post = "-H 'content-type: application/json' -d"
    lines += [
        "",
        f"Open {url}/ in a browser: start an agent there, press Stop, and see what was in flight.",
        "",
        "Or try it in another terminal" + (" that has the same STOPPABLE_API_KEY:" if has_key else ":"),
        "",
        f"  {curl} {url}/runs {post} {_as_word(body)}",
        f'  {curl} {url}/runs/{run}/stop {post} \'{{"reason": "enough"}}\'',
        f"  {curl} {url}/runs/{run}/receipt",
        "",
        *_commands(url, f"{first} {_as_word(example)}" if example else first, f"{run}-too"),
        "",
        "Ctrl-C here ends the server and stops its runs.",
        "",
    ]
    for line in lines:
        screen.say(line)


_EXAMPLES: Mapping[Any, Any] = {int: 1, float: 1.0, bool: True, list: [], dict: {}}


def example_input(agent: Callable[..., Any]) -> dict[str, Any]:
    """Return a value for each argument that an agent needs, so that the commands to try can be pasted as they are."""
    try:
        parameters = inspect.signature(agent, eval_str=True).parameters.values()
    except (TypeError, ValueError, NameError):  # written in C, or with names that are not there at run time
        return {}
    by_name = [one for one in parameters if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}]
    required = [one for one in by_name if one.default is one.empty]
    return {one.name: _EXAMPLES.get(get_origin(one.annotation) or one.annotation, "example") for one in required}


def _as_word(value: Any) -> str:
    return shlex.quote(json.dumps(value))


def _commands(url: str, agent: str, run: str) -> list[str]:
    """Return how this command is called from another terminal in the same folder."""
    called = os.path.relpath(sys.argv[0])
    if called.endswith("__main__.py"):
        called = f"{os.path.relpath(sys.executable)} -m stoppable"
    name = "stoppable" if shutil.which("stoppable") else called
    first = [] if url == _DEFAULT_URL else [f"  export STOPPABLE_URL={url}"]
    return ["or:", "", *first, *(f"  {name} {rest}" for rest in (f"start {agent} --id {run}", "watch", f"stop {run}"))]

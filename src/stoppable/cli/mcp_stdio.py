"""``stoppable mcp``: agents as tools of MCP over stdin and stdout, for the configuration of a client."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from stoppable.cli import find_agent, options, stdio
from stoppable.cli.exits import reports_errors


@reports_errors
def mcp(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE|MODULE:ATTR", help="Every @agent of a module, or an agent, a list or a dict."),
    ],
    store: options.Store = None,
    keep_input: Annotated[
        bool, typer.Option("--keep-input/--no-keep-input", help="Keep the arguments of runs in their records.")
    ] = True,
) -> None:
    """Offer agents as tools of MCP over stdin and stdout: a cancel by the client stops them."""
    from stoppable.adapters.mcp.serving import serve_streams  # noqa: PLC0415 - it needs extras

    stdio.serve(serve_streams, partial(find_agent.agents, target), store=store, keep_input=keep_input)

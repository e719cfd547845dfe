"""``stoppable acp``: an agent for editors that speak the Agent Client Protocol, over stdin and stdout."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from stoppable.cli import find_agent, options, stdio
from stoppable.cli.exits import CommandError, reports_errors


@reports_errors
def acp(
    target: Annotated[
        str, typer.Argument(metavar="MODULE|MODULE:AGENT", help="An agent, or a module that has only one.")
    ],
    store: options.Store = None,
    keep_input: Annotated[
        bool, typer.Option("--keep-input/--no-keep-input", help="Keep the prompts in the records of runs.")
    ] = True,
) -> None:
    """Offer an agent to an editor over stdin and stdout (ACP): its Stop button stops the agent."""
    from stoppable.adapters.acp.serving import serve_streams  # noqa: PLC0415 - it needs extras

    stdio.serve(serve_streams, partial(_only_agent, target), store=store, keep_input=keep_input)


def _only_agent(target: str) -> stdio.Agents:
    agents = find_agent.agents(target)
    if len(agents) > 1:
        module = target.partition(":")[0]
        raise CommandError(f"{target} has several agents: choose one, such as {module}:{next(iter(agents))}")
    return agents

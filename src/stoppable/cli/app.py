"""The command ``stoppable``."""

from __future__ import annotations

from typing import Annotated

import typer

import stoppable
from stoppable.cli.check import check
from stoppable.cli.demo import demo
from stoppable.cli.exits import EPILOG
from stoppable.cli.run import run
from stoppable.cli.runs import agents, ls, receipt, show_run, start, tree
from stoppable.cli.serve import serve
from stoppable.cli.stops import audit, holds, release, stop
from stoppable.cli.watch import watch

app = typer.Typer(
    name="stoppable",
    help="The stop button for AI agents: exactly that run stops, with everything it started.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_AGENTS = (serve, demo, run, check, agents)
_RUNS = (start, ls, watch, show_run, tree, receipt, stop, holds, release, audit)

for _command in _AGENTS + _RUNS:
    app.command(_command.__name__.removesuffix("_run"), epilog=None)(_command)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it like that
    if wanted:
        typer.echo(stoppable.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Stop AI agents: exactly that run, with everything it started."""

"""The command ``stoppable``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

import stoppable
from stoppable.cli.exits import EPILOG

COMMANDS = {
    "serve": ("serve:serve", "Serve agents, to start, watch and stop their runs over HTTP."),
    "demo": ("demo:demo", "Play three runs side by side and stop one."),
    "run": ("run:run", "Run an agent here, with Ctrl-C as its stop button."),
    "check": ("check:check", "Check that an agent stops, at each of its boundaries and in each mode."),
    "agents": ("runs:agents", "List the agents of the server, with what each takes."),
    "start": ("runs:start", "Start an agent of the server and print the id of the run."),
    "ls": ("runs:ls", "List runs, newest first."),
    "watch": ("watch:watch", "Watch all runs in a live table, or one run until it is over."),
    "show": ("runs:show_run", "Show all about a run: what it started, its output, its error, its receipt."),
    "tree": ("runs:tree", "Show a run with everything it started."),
    "receipt": ("runs:receipt", "Show what became of the stop of a run."),
    "stop": ("stops:stop", "Stop a run with everything it started, or many runs."),
    "holds": ("stops:holds", "List the holds that refuse new runs."),
    "release": ("stops:release", "Release a hold, so that runs can be started again."),
    "audit": ("stops:audit", "List who stopped, held and released what, newest first."),
}
"""Where each command is, and its line in ``stoppable --help``."""


def command_line(words: Collection[str] = tuple(COMMANDS)) -> typer.Typer:
    """Return the command, able to execute the subcommands among some words; of the others it knows name and help.

    Importing a subcommand takes longer than most of them do, and one is enough.
    """
    app = typer.Typer(
        name="stoppable",
        help="The stop button for AI agents: exactly that run stops, with everything it started.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    for name, (place, help_line) in COMMANDS.items():
        app.command(name, epilog=None, short_help=help_line)(_imported(place) if name in words else _unused)
    return app


def _imported(place: str) -> Callable[..., Any]:
    module, _, function = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"stoppable.cli.{module}"), function)
    return found


def _unused() -> None:
    raise AssertionError("a command is imported before it is called")


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it like that
    if wanted:
        typer.echo(stoppable.__version__)
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Stop AI agents: exactly that run, with everything it started."""

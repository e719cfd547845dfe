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
    "mcp": ("mcp_stdio:mcp", "Offer agents as tools of MCP over stdin and stdout."),
    "acp": ("acp_stdio:acp", "Offer an agent to an editor (ACP) over stdin and stdout."),
    "run": ("run_here:run", "Run an agent here, with Ctrl-C as its stop button."),
    "check": ("check:check", "Check that an agent stops, at each of its boundaries and in each mode."),
    "doctor": ("doctor:doctor", "Say what Stop reaches on this machine, and what is installed."),
    "agents": ("commands:agents", "List the agents of the server, with what each takes."),
    "start": ("commands:start", "Start an agent of the server and print the id of the run."),
    "ls": ("commands:ls", "List runs, newest first."),
    "watch": ("live_view:watch", "Watch all runs in a live table, or one run until it is over."),
    "show": ("commands:show_run", "Show all about a run: what it started, its output, its error, its receipt."),
    "tree": ("commands:tree", "Show a run with everything it started."),
    "receipt": ("commands:receipt", "Show what became of the stop of a run."),
    "stop": ("commands:stop", "Stop a run with everything it started, or many runs."),
    "holds": ("commands:holds", "List the holds that refuse new runs."),
    "release": ("commands:release", "Release a hold, so that runs can be started again."),
    "audit": ("commands:audit", "List who stopped, held and released what, newest first."),
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
        app.command(name, epilog=None, short_help=help_line)(_import_command(place) if name in words else _never_called)
    return app


def _import_command(place: str) -> Callable[..., Any]:
    module, _, function = place.partition(":")
    command: Callable[..., Any] = getattr(importlib.import_module(f"stoppable.cli.{module}"), function)
    return command


def _never_called() -> None:
    raise AssertionError("a command is imported before it is called")


def _version(is_wanted: bool) -> None:  # noqa: FBT001 - typer calls it like that
    if is_wanted:
        typer.echo(stoppable.__version__)
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Stop AI agents: exactly that run, with everything it started."""

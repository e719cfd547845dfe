"""Commands about agents and runs: agents, ls, start, show, tree, receipt."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stoppable._core.policy import Limits
from stoppable._core.state import Status
from stoppable._core.stop import Receipt
from stoppable.cli import options, screen, show, tables
from stoppable.cli.countdown import with_those_below
from stoppable.cli.exits import reports_errors
from stoppable.cli.options import AgentArgument, Direct, InputArgument, Json, Labels, RunArgument, Url
from stoppable.cli.text import safe
from stoppable.records import RunRecord, RunSummary, Summaries

if TYPE_CHECKING:
    from stoppable.cli.options import Connected


_PAGE = 100
_COUNTED = 200  # runs, beyond those that are listed: enough for "20 of 23"


@reports_errors
def ls(
    status: Annotated[list[Status] | None, typer.Option("--status", help="May be given several times.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Only runs of this agent.")] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only runs of this owner.")] = None,
    label: Labels = None,
    key: Annotated[str | None, typer.Option("--key", help="Only the turns of this conversation.")] = None,
    limit: options.Limit = 20,
    full: Annotated[bool, typer.Option("--full", help="Print every column, ids and reasons whole.")] = False,
    url: Url = None,
    store: Direct = None,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    with options.connect(url, store) as client:
        wanted = functools.partial(
            client.list, status=status or [], agent=agent, owner=owner, labels=options.labels(label), key=key
        )
        records, count = _listed(wanted, limit, 0 if as_json else _COUNTED)
    if as_json:
        screen.print_json(records)
    elif records:
        screen.show(tables.runs(records, screen.now(), full=full))
        if count > len(records):
            known = f"{count}" if count < _COUNTED else f"{count} or more"
            screen.say(f"the newest {len(records)} of {known} runs: -n {count} shows them")
    else:
        screen.say("no runs: start one with `stoppable start AGENT`")


def _listed(page_of: Callable[..., Summaries], limit: int, counted: int) -> tuple[list[RunSummary], int]:
    """Return the first runs, and how many there are, as far as they are counted; a server lists a hundred at a time."""
    found: list[RunSummary] = []
    cursor = None
    while len(found) < max(limit, counted):
        wanted = limit if len(found) < limit else counted
        page = page_of(cursor=cursor, limit=min(_PAGE, wanted - len(found)))
        found += page.runs
        cursor = page.cursor
        if cursor is None or not page.runs:
            break
    return found[:limit], len(found)


@reports_errors
def start(
    agent: AgentArgument,
    given: InputArgument = None,
    run_id: Annotated[str | None, typer.Option("--id", help="Its id; the same id again is the same run.")] = None,
    owner: options.Owner = None,
    label: Labels = None,
    key: Annotated[str | None, typer.Option("--key", help="The conversation that it is a turn of; any text.")] = None,
    seconds: options.Seconds = None,
    isolation: Annotated[str | None, typer.Option("--isolation", help="auto, task, thread or process.")] = None,
    is_followed: Annotated[bool, typer.Option("--follow", "-f", help="Show it until it is over.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Start an agent of the server and print the id of the run."""
    with options.connect_to_server(url) as client:
        handle = client.start(
            agent,
            options.arguments(given),
            run_id=run_id,
            owner=owner,
            labels=options.labels(label) or None,
            key=key,
            limits=None if seconds is None else Limits(seconds=seconds),
            isolation=isolation,
        )
        record = handle.last_record
        assert record is not None, "a start returns the record"
        if is_followed:
            from stoppable.cli.following import follow  # noqa: PLC0415 - most commands show nothing live

            raise typer.Exit(follow(client, record, as_json=as_json))
    if as_json:
        screen.print_json(record)
        return
    typer.echo(safe(record.id))
    screen.say(f"{record.name} is {record.status}; stop it with `stoppable stop {show.short(record.id)}`")


@reports_errors
def agents(url: Url = None, as_json: Json = False) -> None:
    """List the agents of the server, with what each takes."""
    with options.connect_to_server(url) as client:
        found = client.agent_infos()
    if as_json:
        screen.print_json([asdict(one) for one in found])
    elif found:
        screen.show(tables.agents(found))
    else:
        screen.say("the server has no agents: name some when you start it, as in `stoppable serve agents`")


@reports_errors
def show_run(
    run: RunArgument,
    full: Annotated[bool, typer.Option("--full", help="Print inputs, results and partials whole.")] = False,
    url: Url = None,
    store: Direct = None,
    as_json: Json = False,
) -> None:
    """Show all about a run: what it started, its output, its error, its receipt."""
    from stoppable.cli.details import details  # noqa: PLC0415 - only here

    with options.connect(url, store) as client:
        record = options.find(client, run)
        tree = client.tree(record.id)
        found = _receipt_of(client, record)
    if as_json:
        screen.print_json({"run": record, "tree": tree, "receipt": found})
    else:
        screen.show(details(record, with_those_below(tree), found, screen.now(), full=full))


@reports_errors
def tree(run: RunArgument, url: Url = None, store: Direct = None, as_json: Json = False) -> None:
    """Show a run with everything it started."""
    with options.connect(url, store) as client:
        runs = client.tree(options.find(client, run).id)
    if as_json:
        screen.print_json(runs)
    else:
        screen.show(show.tree(with_those_below(runs), screen.now()))


@reports_errors
def receipt(
    run: RunArgument,
    full: Annotated[bool, typer.Option("--full", help="Print the output whole.")] = False,
    url: Url = None,
    store: Direct = None,
    as_json: Json = False,
) -> None:
    """Show what became of the stop of a run."""
    with options.connect(url, store) as client:
        record = options.find(client, run)
        found = _receipt_of(client, record)
    if as_json:
        screen.print_json(found)
    elif found is None:
        screen.say(f"{show.short(record.id)} was not stopped: it is {record.status}")
    else:
        screen.show(show.receipt(found, record, full=full))


def _receipt_of(client: Connected, record: RunRecord) -> Receipt | None:
    """Return the receipt of a run that was stopped; a server refuses to give one of any other, and logs that."""
    return None if record.stop is None else client.receipt(record.id)

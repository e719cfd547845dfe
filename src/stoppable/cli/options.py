"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from stoppable import _secrets
from stoppable.cli.exits import CommandError, Exit
from stoppable.errors import HoldNotFound, RunNotFound, StoppableError
from stoppable.records import RunRecord

if TYPE_CHECKING:
    from stoppable.cli.store_client import StoreClient
    from stoppable.client import Client
    from stoppable.client._sync.calls import Calls as Server

    Connected: TypeAlias = Server | StoreClient

_RETRY_SECONDS = 2.0  # a person is waiting at a terminal
_SHORTEST_PREFIX = 4  # characters of an id
_NAMED_MATCHES = 10
_MOST_SEARCHED = 1000


def _impatient() -> Client:
    from stoppable.client import Client  # noqa: PLC0415 - httpx takes a while

    return Client(timeout=0.5, retry_seconds=0.0)


def _complete_runs(incomplete: str) -> list[str]:
    try:
        with _impatient() as client:
            return [record.id for record in client.list(limit=50).runs if record.id.startswith(incomplete)]
    except StoppableError:
        return []


def _complete_agents(incomplete: str) -> list[str]:
    try:
        with _impatient() as client:
            return [name for name in client.agents() if name.startswith(incomplete)]
    except StoppableError:
        return []


RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Its id, or the beginning of it.", autocompletion=_complete_runs)
]
OptionalRun = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="Its id, or the beginning of it.", autocompletion=_complete_runs)
]
AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="The name of an agent of the server.", autocompletion=_complete_agents)
]
InputArgument = Annotated[
    str | None,
    typer.Argument(metavar="[INPUT]", help="A JSON object of keyword arguments, or anything else as the only one."),
]
Target = Annotated[
    str, typer.Argument(metavar="MODULE:AGENT", help="A file or module and a function, such as agents.py:research.")
]
Owner = Annotated[str | None, typer.Option("--owner", help="Whose run it is.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Stop it after so many seconds.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many, newest first.")]
Url = Annotated[str | None, typer.Option("--url", envvar="STOPPABLE_URL", help="Where the server is.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="KEY:VALUE", help="May be given several times.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="STOPPABLE_STORE",
        metavar="URL",
        help="Where runs are kept: sqlite:///runs.db.",
        callback=lambda url: url or _secrets.store_url(),
    ),
]


Direct = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Without a server, open the store itself: sqlite:///runs.db."),
]


def connect(url: str | None, store: str | None) -> Connected:
    """Return what the commands ask: the store itself if one is given, otherwise the server."""
    if store is None:
        return connect_to_server(url)
    from stoppable.cli.store_client import StoreClient  # noqa: PLC0415 - only here

    return StoreClient(store)


def connect_to_server(url: str | None) -> Server:
    """Return a client that does not keep a person waiting."""
    from stoppable.client.call_plans import is_loopback, server_url  # noqa: PLC0415 - `run` and `demo` need no client

    address = server_url(url)
    if address.startswith("http:") and is_loopback(address):
        from stoppable.cli.http_client import HttpClient  # noqa: PLC0415

        return HttpClient(address, retry_seconds=_RETRY_SECONDS)
    from stoppable.client import Client  # noqa: PLC0415 - httpx takes a while

    return Client(address, retry_seconds=_RETRY_SECONDS)


def labels(texts: Sequence[str] | None) -> dict[str, str]:
    """Return labels from what was typed."""
    pairs = [text.partition(":") for text in texts or ()]
    for key, colon, _ in pairs:
        if not key or not colon:
            raise CommandError(f"{key!r} is not a label: use KEY:VALUE")
    return {key: value for key, _, value in pairs}


def arguments(text: str | None) -> Any:
    """Return the input of an agent: JSON, or the text itself where it is none; None for no input at all."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text.lstrip()[:1] in {"{", "["}:
            raise CommandError(f"the input is not valid JSON: {text[:60]!r}") from None
        return text


def find(client: Connected, prefix: str) -> RunRecord:
    """Return the run of an id, or of the beginning of one that no other run shares."""
    try:
        return client.get(prefix)
    except RunNotFound:
        _check_prefix(prefix, "run", "`stoppable ls` lists runs")
    matches: list[str] = []
    cursor, searched = None, 0
    while searched < _MOST_SEARCHED:
        page = client.list(limit=100, cursor=cursor)
        matches += [record.id for record in page.runs if record.id.startswith(prefix)]
        searched, cursor = searched + len(page.runs), page.cursor
        if cursor is None or not page.runs:
            break
    if not matches:
        raise RunNotFound(prefix)
    return client.get(_the_only_one(matches, prefix, "run"))


def release(client: Connected, prefix: str) -> str:
    """Release the hold of an id, or of the beginning of one that no other hold shares, and return the id."""
    try:
        client.release(prefix)
    except HoldNotFound:
        _check_prefix(prefix, "hold", "`stoppable holds` lists the holds")
        matches = [hold.id for hold in client.holds() if hold.id.startswith(prefix)]
        if not matches:
            raise
        hold_id = _the_only_one(matches, prefix, "hold")
        client.release(hold_id)
        return hold_id
    return prefix


def _check_prefix(prefix: str, kind: str, hint: str) -> None:
    if len(prefix) < _SHORTEST_PREFIX:
        raise CommandError(
            f"no {kind} has the id {prefix!r}, and a prefix needs four characters: {hint}", Exit.NOT_FOUND
        )


def _the_only_one(matches: Sequence[str], prefix: str, kind: str) -> str:
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(matches[:_NAMED_MATCHES])
    more = f" and {len(matches) - _NAMED_MATCHES} more" if len(matches) > _NAMED_MATCHES else ""
    raise CommandError(f"more than one {kind} starts with {prefix!r}: {names}{more}")

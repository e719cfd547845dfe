"""Commands that stop and hold: stop, holds, release."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stoppable._core import clock
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.cli import options, screen, show
from stoppable.cli.exits import CommandError, Exit, of_status, told
from stoppable.cli.options import Json, Labels, OptionalRun, Url
from stoppable.records import RunRecord
from stoppable.stores.base import wall_clock

if TYPE_CHECKING:
    from stoppable.client import Client

_LONGEST_WAIT = 30.0  # of one request; longer waits ask again
_SHOWN = 20


@told
def stop(
    run: OptionalRun = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Every run of this owner.")] = None,
    label: Labels = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Every run of this agent.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every run there is.")] = False,
    mode: Annotated[
        Mode | None, typer.Option("--mode", help="graceful at first; pressing again without it sends the next mode.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", "-r", help="Why; the receipt and the audit keep it.")
    ] = None,
    grace: Annotated[float | None, typer.Option("--grace", min=0, help="Seconds before force is used.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Refuse new runs like these, too, until `release`.")] = False,
    wait: Annotated[
        float | None, typer.Option("--wait", min=0, metavar="SECONDS", help="Wait for the end, at most so long.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be stopped.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Stop a run with everything it started, or many runs.

    Pressing again without --mode sends the next one: graceful, immediate, kill. A stop of many shows whom it means and
    asks, unless --yes says not to.
    """
    selected = owner is not None or label or agent is not None or is_all
    if (run is None) == (not selected):
        raise CommandError("say which run: its id, or one of --owner, --label, --agent, --all")
    with options.connect(url) as client:
        if run is not None:
            if hold or dry_run:
                raise CommandError("--hold and --dry-run are for many runs: use them with --owner, --label or --agent")
            code = _stop_one(client, run, mode, reason, grace, wait, yes=yes, as_json=as_json)
        else:
            bulk = _Bulk(client, owner, options.labels(label), agent, reason, grace, is_all=is_all, hold=hold)
            code = bulk.stop(mode or Mode.GRACEFUL, wait, dry_run=dry_run, yes=yes, as_json=as_json)
    raise typer.Exit(code)


def _stop_one(
    client: Client,
    typed: str,
    mode: Mode | None,
    reason: str | None,
    grace: float | None,
    wait: float | None,
    *,
    yes: bool,
    as_json: bool,
) -> Exit:
    record = options.find(client, typed)
    chosen = mode or _next_mode(record, yes=yes)
    receipt = client.stop(record.id, chosen, reason, grace=grace, wait=_first_wait(wait))
    if wait is not None:
        receipt = _wait_for(client, receipt, wait)
    if as_json:
        screen.print_json(receipt)
    else:
        screen.show(show.receipt(receipt, client.get(record.id)))
        _say_what_next(receipt)
    return Exit.DONE if wait is None else _code_of_wait(receipt)


def _next_mode(record: RunRecord, *, yes: bool) -> Mode:
    """Return what pressing again means; the last press asks, since clean-up may not run."""
    if record.stop is None or record.over:
        return Mode.GRACEFUL
    following = show.next_mode(record.stop.mode) or Mode.KILL
    if following is Mode.KILL and record.stop.mode is not Mode.KILL and not yes:
        _confirm(f"{record.name} is stopping ({record.stop.mode}). Kill it? Clean-up may not run.", "--mode kill")
    return following


def _say_what_next(receipt: Receipt) -> None:
    if receipt.status.terminal:
        return
    following = show.next_mode(receipt.mode)
    if following is not None:
        screen.say(f"stopping: to press harder ({following}), stop it again")


def _first_wait(wait: float | None) -> float | None:
    return None if wait is None else min(wait, _LONGEST_WAIT)


def _wait_for(client: Client, receipt: Receipt, wait: float) -> Receipt:
    """Ask until the run is over or the time is; the same stop again changes nothing."""
    deadline = clock.now() + wait
    while not receipt.status.terminal and (left := deadline - clock.now()) > 0:
        again = client.stop(receipt.run_id, receipt.mode or Mode.GRACEFUL, wait=min(left, _LONGEST_WAIT))
        receipt = again if again.status.terminal else receipt
    return receipt


def _code_of_wait(receipt: Receipt) -> Exit:
    """Return how a wait for a stop ended: a run that is over is what was asked for, however it got there."""
    if receipt.status is Status.LOST or not receipt.status.terminal:
        return of_status(receipt.status)
    return Exit.DONE


def _confirm(question: str, instead: str) -> None:
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Nobody is here to ask: add --yes, or {instead}")
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was stopped", Exit.REFUSED)


class _Bulk:
    """A stop of many."""

    def __init__(
        self,
        client: Client,
        owner: str | None,
        labels: dict[str, str],
        agent: str | None,
        reason: str | None,
        grace: float | None,
        *,
        is_all: bool,
        hold: bool,
    ) -> None:
        self._client = client
        self._wanted = {"owner": owner, "labels": labels, "agent": agent, "all": is_all}
        self._reason = reason
        self._grace = grace
        self._hold = hold

    def stop(self, mode: Mode, wait: float | None, *, dry_run: bool, yes: bool, as_json: bool) -> Exit:
        """Show whom it means, ask, and stop them."""
        client = self._client
        if dry_run or not yes:
            preview = [one for one in self._send(mode, dry_run=True)[0] if not one.status.terminal]
            if dry_run and as_json:
                screen.print_json(preview)
                return Exit.DONE
            if not preview and not self._hold:
                screen.say("no run matches: nothing to stop")
                return Exit.DONE
            self._show(preview)
            if dry_run:
                return Exit.DONE
            more = " and refuse new ones" if self._hold else ""
            _confirm(f"Stop {_counted(len(preview))} ({mode}){more}?", "--dry-run to look only")
        receipts, hold_id = self._send(mode, dry_run=False)
        receipts = [one for one in receipts if one.answer != "already_finished"]
        if wait is not None:
            deadline = clock.now() + wait
            receipts = [_wait_for(client, one, max(0.0, deadline - clock.now())) for one in receipts]
        if as_json:
            screen.print_json({"receipts": receipts, "hold": hold_id})
        else:
            self._report(receipts, hold_id)
        codes = [_code_of_wait(one) for one in receipts] if wait is not None else []
        return max(codes, default=Exit.DONE)

    def _send(self, mode: Mode, *, dry_run: bool) -> tuple[list[Receipt], str | None]:
        wanted = self._wanted
        found = self._client.stop_where(
            owner=wanted["owner"],  # type: ignore[arg-type]
            labels=wanted["labels"],  # type: ignore[arg-type]
            agent=wanted["agent"],  # type: ignore[arg-type]
            all=bool(wanted["all"]),
            mode=mode,
            reason=self._reason,
            grace=self._grace,
            hold=self._hold and not dry_run,
            dry_run=dry_run,
        )
        return list(found), None if found.hold is None else found.hold.id

    def _show(self, preview: list[Receipt]) -> None:
        records = [self._client.get(one.run_id) for one in preview[:_SHOWN]]
        screen.err().print(show.runs(records, wall_clock()))
        if len(preview) > _SHOWN:
            screen.say(f"… and {len(preview) - _SHOWN} more")

    def _report(self, receipts: list[Receipt], hold_id: str | None) -> None:
        for one in receipts[:_SHOWN]:
            line = show.status(one.status)
            line.append(f"  {show.short(one.run_id)}  {one.answer}")
            if one.in_flight:
                line.append(f"  in flight: {', '.join(one.in_flight)}", style="dim")
            screen.show(line)
        screen.say(f"{_counted(len(receipts))} told to stop")
        if hold_id is not None:
            screen.say(f"new runs like these are refused: `stoppable release {hold_id}` lets them through again")


def _counted(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


@told
def holds(url: Url = None, as_json: Json = False) -> None:
    """List the holds that refuse new runs."""
    with options.connect(url) as client:
        found = client.holds()
    if as_json:
        screen.print_json(found)
    elif found:
        screen.show(show.holds(found))
    else:
        screen.say("no holds: every start is let through")


@told
def release(
    hold: Annotated[str, typer.Argument(metavar="HOLD", help="The id of the hold.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Release a hold, so that runs can be started again."""
    with options.connect(url) as client:
        client.release(hold)
    if as_json:
        screen.print_json({"released": hold})
    else:
        screen.say(f"released {hold}: runs can be started again")

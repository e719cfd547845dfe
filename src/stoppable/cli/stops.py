"""Commands that stop and hold, and say who did: stop, holds, release, audit."""

from __future__ import annotations

import sys
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Self

import typer

from stoppable._core import clock
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Answer, Receipt
from stoppable.cli import options, screen, show, tables
from stoppable.cli.countdown import Countdown, counted, tree_of
from stoppable.cli.exits import CommandError, Exit, of_status, reports_errors
from stoppable.cli.options import Direct, Json, Labels, OptionalRun, Url
from stoppable.cli.text import plain, safe
from stoppable.records import AuditEntry, RunRecord, RunSummary, Selector

if TYPE_CHECKING:
    from rich.live import Live

    from stoppable.cli.options import Connected
    from stoppable.supervisor import BulkStop

_LOOK_SECONDS = 0.1
_SHOWN = 20
_PAGE = 1000


@reports_errors
def stop(
    run: OptionalRun = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Every run of this owner.")] = None,
    label: Labels = None,
    agent: Annotated[str | None, typer.Option("--agent", help="Every run of this agent.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The live runs of this conversation, or its first run.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every run there is.")] = False,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", help="How hard: graceful if not given, and harder each time you stop it again."),
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
    store: Direct = None,
    as_json: Json = False,
) -> None:
    """Stop a run with everything it started, or many runs.

    Without --mode, stopping a run again escalates: graceful, immediate, kill. A stop of many runs lists them and asks
    first, unless you give --yes; a stop of one run or of a --key does not ask.
    """
    selected = owner is not None or label or agent is not None or key is not None or is_all
    if (run is None) == (not selected):
        raise CommandError("say which run: its id, or one of --owner, --label, --agent, --key, --all")
    if run is not None and (hold or dry_run):
        raise CommandError("--hold and --dry-run are for many runs: use them with --owner, --label, --agent or --key")
    press = _Press(mode=mode, reason=reason, grace=grace, wait=wait, yes=yes, as_json=as_json)
    with options.connect(url, store) as client:
        try:
            if run is not None:
                code = _stop_one(client, run, press)
            else:
                selector = Selector(owner=owner, labels=options.labels(label), name=agent, key=key, all=is_all)
                code = _Bulk(client, selector, press, hold=hold).stop(dry_run=dry_run)
        except KeyboardInterrupt:
            if wait is not None:
                screen.say("no longer waiting; the stop goes on")
            raise
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Press:
    """The options of a stop."""

    mode: Mode | None
    reason: str | None
    grace: float | None
    wait: float | None
    yes: bool
    as_json: bool


def _stop_one(client: Connected, typed: str, press: _Press) -> Exit:
    record = options.find(client, typed)
    mode = press.mode or _next_mode(record, yes=press.yes)
    receipt = client.stop(record.id, mode, press.reason, grace=press.grace)
    if press.wait is not None:
        with _CountdownLine(client, record, shown=screen.is_live() and not press.as_json) as line:
            receipt = _wait_for(client, receipt, press.wait, line)
    if press.as_json:
        screen.print_json(receipt)
    else:
        screen.show(show.receipt(receipt, client.get(record.id)))
        _say_what_next(client, record, receipt)
    return Exit.DONE if press.wait is None else _code_of_wait(receipt)


def _next_mode(record: RunRecord, *, yes: bool) -> Mode:
    """Return the next mode; asks before a kill, because clean-up may not run."""
    if record.stop is None or record.over:
        return Mode.GRACEFUL
    following = show.next_mode(record.stop.mode) or Mode.KILL
    if following is Mode.KILL and record.stop.mode is not Mode.KILL and not yes:
        _confirm(f"{record.name} is stopping ({record.stop.mode}). Kill it? Clean-up may not run.", "--mode kill")
    return following


def _say_what_next(client: Connected, record: RunRecord, receipt: Receipt) -> None:
    if receipt.status.terminal:
        return
    following = show.next_mode(receipt.mode)
    harder = f"; stop it again to escalate to {following}" if following is not None else ""
    screen.say(f"stopping: {_why_it_waits(client, record, receipt)}{harder}")


def _why_it_waits(client: Connected, record: RunRecord, receipt: Receipt) -> str:
    in_flight = tree_of(client, record.id)[record.id].in_flight
    return Countdown.of_receipt(receipt, in_flight).told(screen.now())


class _CountdownLine:
    """A line on a terminal that says what a stopping run waits for, and when force comes."""

    def __init__(self, client: Connected, record: RunRecord, *, shown: bool) -> None:
        self._client, self._record = client, record
        self._live = _live_line() if shown else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, receipt: Receipt) -> None:
        if self._live is not None:
            why = _why_it_waits(self._client, self._record, receipt)
            told = f"stopping ({receipt.mode}): {why}; Ctrl-C stops waiting"
            self._live.update(plain(told, "yellow"), refresh=True)


def _live_line() -> Live:
    from rich.live import Live  # noqa: PLC0415 - only for a terminal

    return Live(console=screen.err(), auto_refresh=False, transient=True)


def _wait_for(client: Connected, receipt: Receipt, wait: float, line: _CountdownLine | None = None) -> Receipt:
    """Ask until the run is over or the time is up. A stop with ``wait`` would be one more stop, in the audit too."""
    deadline = clock.now() + wait
    while not receipt.status.terminal:
        found = client.receipt(receipt.run_id)
        if found is not None and found.status.terminal:
            return replace(found, answer=receipt.answer)  # what this stop changed
        if line is not None and found is not None:
            line.tell(found)
        left = deadline - clock.now()
        if left <= 0:
            break
        threading.Event().wait(min(left, _LOOK_SECONDS))
    return receipt


def _code_of_wait(receipt: Receipt) -> Exit:
    """Return the exit code of ``--wait``: 0 for any end of the run except ``lost``."""
    if receipt.status is Status.LOST or not receipt.status.terminal:
        return of_status(receipt.status)
    return Exit.DONE


def _confirm(question: str, instead: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandError(f"{question} There is no terminal to ask on: add --yes, or {instead}")
    try:
        is_agreed = typer.confirm(safe(question), err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        typer.echo(err=True)
        raise CommandError("nothing was stopped", Exit.INTERRUPTED) from None
    if not is_agreed:
        raise CommandError("nothing was stopped", Exit.REFUSED)


class _Bulk:
    """A stop of many."""

    def __init__(self, client: Connected, selector: Selector, press: _Press, *, hold: bool) -> None:
        self._client = client
        self._selector = selector
        self._press = press
        self._mode = press.mode or Mode.GRACEFUL
        self._hold = hold

    def stop(self, *, dry_run: bool) -> Exit:
        """List the runs, ask, and stop them."""
        is_asked = not self._press.yes and not self._selector.is_conversation
        if (dry_run or is_asked) and not self._previewed(dry_run=dry_run):
            return Exit.DONE
        stopped = self._send(dry_run=False)
        hold_id = None if stopped.hold is None else stopped.hold.id
        receipts = [one for one in stopped if one.answer is not Answer.ALREADY_FINISHED]
        if self._press.wait is not None:
            deadline = clock.now() + self._press.wait
            receipts = [_wait_for(self._client, one, max(0.0, deadline - clock.now())) for one in receipts]
        if self._press.as_json:
            screen.print_json({"receipts": receipts, "hold": hold_id, "waitsUntil": stopped.waits_until})
        else:
            self._report(receipts, hold_id)
            if stopped.waits_until is not None:
                seconds = max(0.0, stopped.waits_until - screen.now())
                screen.say(f"no run of this key is live: one that starts within {seconds:.0f} s is stopped at once")
        codes = [_code_of_wait(one) for one in receipts] if self._press.wait is not None else []
        return max(codes, default=Exit.DONE)

    def _previewed(self, *, dry_run: bool) -> bool:
        """List the runs and return whether to go on; raises if the answer is no."""
        preview = [one for one in self._send(dry_run=True) if not one.status.terminal]
        if dry_run and self._press.as_json:
            screen.print_json(preview)
            return False
        if not preview and not self._hold:
            screen.say("no run matches: nothing to stop")
            if self._press.as_json:
                screen.print_json({"receipts": [], "hold": None, "waitsUntil": None})
            return False
        self._show(preview)
        if not dry_run:
            more = " and refuse new ones" if self._hold else ""
            _confirm(f"Stop {_counted(len(preview))} ({self._mode}){more}?", "--dry-run to look only")
        return not dry_run

    def _send(self, *, dry_run: bool) -> BulkStop:
        return self._client.stop_where(
            owner=self._selector.owner,
            labels=self._selector.labels,
            agent=self._selector.name,
            key=self._selector.key,
            all=self._selector.all,
            mode=self._mode,
            reason=self._press.reason,
            grace=self._press.grace,
            hold=self._hold and not dry_run,
            dry_run=dry_run,
        )

    def _show(self, preview: list[Receipt]) -> None:
        records = [RunSummary.of(self._client.get(one.run_id)) for one in preview[:_SHOWN]]
        screen.note(tables.runs(records, screen.now()))
        if len(preview) > _SHOWN:
            screen.say(f"… and {len(preview) - _SHOWN} more")

    def _report(self, receipts: list[Receipt], hold_id: str | None) -> None:
        for one in receipts[:_SHOWN]:
            line = show.status(one.status)
            line.append(f"  {show.short(one.run_id)}  {show.words(one.answer)}")
            if one.in_flight:
                line.append(safe(f"  {counted(one.in_flight)} in flight"), style="dim")
            screen.show(line)
        screen.say(f"{_counted(len(receipts))} told to stop")
        if hold_id is not None:
            screen.say(f"new runs like these are refused: `stoppable release {hold_id}` lets them through again")


def _counted(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


@reports_errors
def holds(url: Url = None, store: Direct = None, as_json: Json = False) -> None:
    """List the holds that refuse new runs."""
    with options.connect(url, store) as client:
        found = client.holds()
    if as_json:
        screen.print_json(found)
    elif found:
        screen.show(tables.holds(found))
    else:
        screen.say("no holds: every start is let through")


@reports_errors
def release(
    hold: Annotated[str, typer.Argument(metavar="HOLD", help="The id of the hold, or the beginning of it.")],
    url: Url = None,
    store: Direct = None,
    as_json: Json = False,
) -> None:
    """Release a hold, so that runs can be started again."""
    with options.connect(url, store) as client:
        hold_id = options.release(client, hold)
    if as_json:
        screen.print_json({"released": hold_id})
    else:
        screen.say(f"released {hold_id}: runs can be started again")


@reports_errors
def audit(
    limit: options.Limit = 20,
    url: Url = None,
    store: Direct = None,
    as_json: Json = False,
) -> None:
    """List who stopped, held and released what, newest first."""
    with options.connect(url, store) as client:
        entries, more = _newest(client, limit)
    if as_json:
        screen.print_json(entries)
    elif entries:
        screen.show(tables.audit(entries))
        if more:
            screen.say(f"… and more: -n {2 * limit} shows them")
    else:
        screen.say("nothing was stopped, held or released yet")


def _newest(client: Connected, limit: int) -> tuple[list[AuditEntry], bool]:
    """Return the last entries, and whether there are more; a server lists them from the first one on."""
    kept: deque[AuditEntry] = deque(maxlen=min(limit, sys.maxsize))
    count = 0
    while page := client.audit(kept[-1].id if kept else 0, _PAGE):
        kept.extend(page)
        count += len(page)
    return list(reversed(kept)), count > limit

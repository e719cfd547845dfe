"""Commands that ask a server or a store: about agents and runs, and to stop, hold and release."""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Self

import typer

from stoppable._core import clock
from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Limits, Mode, Status
from stoppable.cli import formatting, options, screen, tables
from stoppable.cli.exits import CommandError, Exit, of_status, reports_errors
from stoppable.cli.formatting import Countdown, count_labels, tree_of, with_subtrees
from stoppable.cli.options import AgentArgument, Direct, InputArgument, Json, Labels, OptionalRun, RunArgument, Url
from stoppable.cli.text import plain, safe
from stoppable.records import AuditEntry, RunRecord, RunSummary, Selector, Summaries

if TYPE_CHECKING:
    from rich.live import Live

    from stoppable.cli.options import Connected
    from stoppable.records import BulkStop


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
        page_of = functools.partial(
            client.list, status=status or [], agent=agent, owner=owner, labels=options.labels(label), key=key
        )
        records, count = _list_runs(page_of, limit, 0 if as_json else _COUNTED)
    if as_json:
        screen.print_json(records)
    elif records:
        screen.show(tables.runs(records, screen.now(), full=full))
        if count > len(records):
            total = f"{count}" if count < _COUNTED else f"{count} or more"
            screen.say(f"the newest {len(records)} of {total} runs: -n {count} shows them")
    else:
        screen.say("no runs: start one with `stoppable start AGENT`")


def _list_runs(page_of: Callable[..., Summaries], limit: int, most_counted: int) -> tuple[list[RunSummary], int]:
    """Return the first runs, and how many there are, as far as they are counted; a server lists a hundred at a time."""
    runs: list[RunSummary] = []
    cursor = None
    while len(runs) < max(limit, most_counted):
        target = limit if len(runs) < limit else most_counted
        page = page_of(cursor=cursor, limit=min(_PAGE, target - len(runs)))
        runs += page.runs
        cursor = page.cursor
        if cursor is None or not page.runs:
            break
    return runs[:limit], len(runs)


@reports_errors
def start(
    agent: AgentArgument,
    text: InputArgument = None,
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
            options.arguments(text),
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
            from stoppable.cli.live_view import follow  # noqa: PLC0415 - most commands show nothing live

            raise typer.Exit(follow(client, record, as_json=as_json))
    if as_json:
        screen.print_json(record)
        return
    typer.echo(safe(record.id))
    screen.say(f"{record.name} is {record.status}; stop it with `stoppable stop {formatting.short_id(record.id)}`")


@reports_errors
def agents(url: Url = None, as_json: Json = False) -> None:
    """List the agents of the server, with what each takes."""
    with options.connect_to_server(url) as client:
        infos = client.agent_infos()
    if as_json:
        screen.print_json([asdict(one) for one in infos])
    elif infos:
        screen.show(tables.agents(infos))
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
    with options.connect(url, store) as client:
        record = options.find(client, run)
        tree = client.tree(record.id)
        receipt = _receipt_of(client, record)
    if as_json:
        screen.print_json({"run": record, "tree": tree, "receipt": receipt})
    else:
        screen.show(formatting.render_details(record, with_subtrees(tree), receipt, screen.now(), full=full))


@reports_errors
def tree(run: RunArgument, url: Url = None, store: Direct = None, as_json: Json = False) -> None:
    """Show a run with everything it started."""
    with options.connect(url, store) as client:
        runs = client.tree(options.find(client, run).id)
    if as_json:
        screen.print_json(runs)
    else:
        screen.show(formatting.render_tree(with_subtrees(runs), screen.now()))


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
        result = _receipt_of(client, record)
    if as_json:
        screen.print_json(result)
    elif result is None:
        screen.say(f"{formatting.short_id(record.id)} was not stopped: it is {record.status}")
    else:
        screen.show(formatting.render_receipt(result, record, full=full))


def _receipt_of(client: Connected, record: RunRecord) -> Receipt | None:
    """Return the receipt of a run that was stopped; a server refuses to give one of any other, and logs that."""
    return None if record.stop is None else client.receipt(record.id)


_LOOK_SECONDS = 0.1
_SHOWN = 20
_AUDIT_PAGE = 1000


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
    stop_options = _StopOptions(mode=mode, reason=reason, grace=grace, wait=wait, yes=yes, as_json=as_json)
    with options.connect(url, store) as client:
        try:
            if run is not None:
                code = _stop_one(client, run, stop_options)
            else:
                selector = Selector(owner=owner, labels=options.labels(label), agent=agent, key=key, all=is_all)
                code = _Bulk(client, selector, stop_options, hold=hold).stop(dry_run=dry_run)
        except KeyboardInterrupt:
            if wait is not None:
                screen.say("no longer waiting; the stop goes on")
            raise
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StopOptions:
    """The options of a stop."""

    mode: Mode | None
    reason: str | None
    grace: float | None
    wait: float | None
    yes: bool
    as_json: bool


def _stop_one(client: Connected, run_id: str, stop_options: _StopOptions) -> Exit:
    record = options.find(client, run_id)
    mode = stop_options.mode or _next_mode(record, yes=stop_options.yes)
    receipt = client.stop(record.id, mode, stop_options.reason, grace=stop_options.grace)
    if stop_options.wait is not None:
        with _CountdownLine(client, record, is_shown=screen.is_live() and not stop_options.as_json) as line:
            receipt = _wait_for(client, receipt, stop_options.wait, line)
    if stop_options.as_json:
        screen.print_json(receipt)
    else:
        screen.show(formatting.render_receipt(receipt, client.get(record.id)))
        _say_what_next(client, record, receipt)
    return Exit.DONE if stop_options.wait is None else _code_of_wait(receipt)


def _next_mode(record: RunRecord, *, yes: bool) -> Mode:
    """Return the next mode; asks before a kill, because clean-up may not run."""
    if record.stop is None or record.over:
        return Mode.GRACEFUL
    harder_mode = formatting.next_mode(record.stop.mode) or Mode.KILL
    if harder_mode is Mode.KILL and record.stop.mode is not Mode.KILL and not yes:
        _confirm(f"{record.name} is stopping ({record.stop.mode}). Kill it? Clean-up may not run.", "--mode kill")
    return harder_mode


def _say_what_next(client: Connected, record: RunRecord, receipt: Receipt) -> None:
    if receipt.status.terminal:
        return
    harder_mode = formatting.next_mode(receipt.mode)
    harder = f"; stop it again to escalate to {harder_mode}" if harder_mode is not None else ""
    screen.say(f"stopping: {_why_it_waits(client, record, receipt)}{harder}")


def _why_it_waits(client: Connected, record: RunRecord, receipt: Receipt) -> str:
    in_flight = tree_of(client, record.id)[record.id].in_flight
    return Countdown.of_receipt(receipt, in_flight).describe(screen.now())


class _CountdownLine:
    """A line on a terminal that says what a stopping run waits for, and when force comes."""

    def __init__(self, client: Connected, record: RunRecord, *, is_shown: bool) -> None:
        self._client, self._record = client, record
        self._live = _live_line() if is_shown else None

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
            text = f"stopping ({receipt.mode}): {why}; Ctrl-C stops waiting"
            self._live.update(plain(text, "yellow"), refresh=True)


def _live_line() -> Live:
    from rich.live import Live  # noqa: PLC0415 - only for a terminal

    return Live(console=screen.err(), auto_refresh=False, transient=True)


def _wait_for(client: Connected, receipt: Receipt, wait: float, line: _CountdownLine | None = None) -> Receipt:
    """Ask until the run is over or the time is up. A stop with ``wait`` would be one more stop, in the audit too."""
    deadline = clock.now() + wait
    while not receipt.status.terminal:
        latest = client.receipt(receipt.run_id)
        if latest is not None and latest.status.terminal:
            return replace(latest, answer=receipt.answer)  # what this stop changed
        if line is not None and latest is not None:
            line.tell(latest)
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
    """A stop of all runs that a selector matches, after a preview and a question."""

    def __init__(self, client: Connected, selector: Selector, stop_options: _StopOptions, *, hold: bool) -> None:
        self._client = client
        self._selector = selector
        self._options = stop_options
        self._mode = stop_options.mode or Mode.GRACEFUL
        self._hold = hold

    def stop(self, *, dry_run: bool) -> Exit:
        """List the runs, ask, and stop them."""
        is_asked = not self._options.yes and not self._selector.is_conversation
        if (dry_run or is_asked) and not self._confirm_preview(dry_run=dry_run):
            return Exit.DONE
        bulk_stop = self._send(dry_run=False)
        hold_id = None if bulk_stop.hold is None else bulk_stop.hold.id
        receipts = [one for one in bulk_stop if one.answer is not Answer.ALREADY_FINISHED]
        if self._options.wait is not None:
            deadline = clock.now() + self._options.wait
            receipts = [_wait_for(self._client, one, max(0.0, deadline - clock.now())) for one in receipts]
        if self._options.as_json:
            screen.print_json({"receipts": receipts, "hold": hold_id, "waitsUntil": bulk_stop.waits_until})
        else:
            self._report(receipts, hold_id)
            if bulk_stop.waits_until is not None:
                seconds = max(0.0, bulk_stop.waits_until - screen.now())
                screen.say(f"no run of this key is live: one that starts within {seconds:.0f} s is stopped at once")
        codes = [_code_of_wait(one) for one in receipts] if self._options.wait is not None else []
        return max(codes, default=Exit.DONE)

    def _confirm_preview(self, *, dry_run: bool) -> bool:
        """List the runs and return whether to go on; raises if the answer is no."""
        preview = [one for one in self._send(dry_run=True) if not one.status.terminal]
        if dry_run and self._options.as_json:
            screen.print_json(preview)
            return False
        if not preview and not self._hold:
            screen.say("no run matches: nothing to stop")
            if self._options.as_json:
                screen.print_json({"receipts": [], "hold": None, "waitsUntil": None})
            return False
        self._show(preview)
        if not dry_run:
            more = " and refuse new ones" if self._hold else ""
            _confirm(f"Stop {_count_runs(len(preview))} ({self._mode}){more}?", "--dry-run to look only")
        return not dry_run

    def _send(self, *, dry_run: bool) -> BulkStop:
        return self._client.stop_where(
            owner=self._selector.owner,
            labels=self._selector.labels,
            agent=self._selector.agent,
            key=self._selector.key,
            all=self._selector.all,
            mode=self._mode,
            reason=self._options.reason,
            grace=self._options.grace,
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
            line = formatting.render_status(one.status)
            line.append(f"  {formatting.short_id(one.run_id)}  {formatting.in_words(one.answer)}")
            if one.in_flight:
                line.append(safe(f"  {count_labels(one.in_flight)} in flight"), style="dim")
            screen.show(line)
        screen.say(f"{_count_runs(len(receipts))} told to stop")
        if hold_id is not None:
            screen.say(f"new runs like these are refused: `stoppable release {hold_id}` lets them through again")


def _count_runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


@reports_errors
def holds(url: Url = None, store: Direct = None, as_json: Json = False) -> None:
    """List the holds that refuse new runs."""
    with options.connect(url, store) as client:
        in_force = client.holds()
    if as_json:
        screen.print_json(in_force)
    elif in_force:
        screen.show(tables.holds(in_force))
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
        entries, more = _newest_entries(client, limit)
    if as_json:
        screen.print_json(entries)
    elif entries:
        screen.show(tables.audit(entries))
        if more:
            screen.say(f"… and more: -n {2 * limit} shows them")
    else:
        screen.say("nothing was stopped, held or released yet")


def _newest_entries(client: Connected, limit: int) -> tuple[list[AuditEntry], bool]:
    """Return the last entries, and whether there are more; a server lists them from the first one on."""
    entries: deque[AuditEntry] = deque(maxlen=min(limit, sys.maxsize))
    count = 0
    while page := client.audit(entries[-1].id if entries else 0, _AUDIT_PAGE):
        entries.extend(page)
        count += len(page)
    return list(reversed(entries)), count > limit

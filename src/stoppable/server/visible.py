"""What a caller sees of a tree in which runs of other owners are: nothing of those."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from stoppable._core.stop import Receipt
from stoppable.errors import RunNotFound
from stoppable.records import RunRecord, changed
from stoppable.server.principal import Principal
from stoppable.supervisor import Supervisor

_DIRECTORIES = re.compile(r'File "[^"\n]*[/\\]([^"\n/\\]+)"')


async def visible_record(
    supervisor: Supervisor, caller: Principal, record: RunRecord, seen: Collection[str] = ()
) -> RunRecord:
    """Return a record as its owner may see it: tracebacks without the directories of the server.

    ``seen`` are runs that the caller is known to see: if they are all that the receipt names, nobody is asked.
    """
    if caller.sees_all:
        return record
    outcome = record.outcome
    if outcome is not None and outcome.error is not None and outcome.error.trace:
        error = replace(outcome.error, trace=_DIRECTORIES.sub(r'File "\1"', outcome.error.trace))
        record = changed(record, outcome=replace(outcome, error=error))
    if record.receipt is None or (seen and {node.run_id for node in record.receipt.nodes}.issubset(seen)):
        return record
    receipt = await visible_receipt(supervisor, caller, record.receipt)
    return record if receipt is record.receipt else changed(record, receipt=receipt)


async def visible_receipt(supervisor: Supervisor, caller: Principal, receipt: Receipt) -> Receipt:
    """Return a receipt without the nodes of other owners' runs.

    What is in flight has no owner on it, so it is told of the nodes that are left.
    """
    if caller.sees_all or not (receipt.nodes or receipt.in_flight or receipt.entered_after or receipt.library_threads):
        return receipt
    found = {record.id: caller.sees_run(record) for record in await supervisor.tree(receipt.run_id)}
    for run_id in {node.run_id for node in receipt.nodes} - set(found):  # its parent was in the store after it
        found[run_id] = await _is_seen(supervisor, caller, run_id)
    if all(found.values()):
        return receipt
    own = {run_id for run_id, is_seen in found.items() if is_seen}
    nodes = tuple(node for node in receipt.nodes if node.run_id in own)
    names = {f"{node.kind}:{node.name}" if node.name else node.kind for node in nodes}
    in_flight = tuple(one for one in receipt.in_flight if one in names)
    return replace(receipt, nodes=nodes, in_flight=in_flight, entered_after=(), library_threads=())


async def _is_seen(supervisor: Supervisor, caller: Principal, run_id: str) -> bool:
    try:
        return caller.sees_run(await supervisor.get(run_id))
    except RunNotFound:
        return False

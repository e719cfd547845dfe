"""How the words of A2A and of stoppable correspond, and stores in which the first terminal state of a task stays."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from a2a.server.cluster.task_store import StoredTask, VersionedTaskStore
from a2a.server.context import ServerCallContext
from a2a.server.tasks import TaskStore
from a2a.types import ListTasksRequest, ListTasksResponse, Message, Task, TaskState
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

import stoppable
from stoppable import Mode, Outcome, ReasonKind, Receipt, Status
from stoppable.records import OutcomeRecord

CANCELED = TaskState.TASK_STATE_CANCELED
FAILED = TaskState.TASK_STATE_FAILED
REJECTED = TaskState.TASK_STATE_REJECTED
SUBMITTED = TaskState.TASK_STATE_SUBMITTED
TERMINAL = frozenset({TaskState.TASK_STATE_COMPLETED, CANCELED, FAILED, REJECTED})
INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})

METADATA = "stoppable"
"""The key of our facts in the metadata of a task, and of the options of a stop in the metadata of a cancel."""

RUN = "stoppable.run"
"""The key of the id of a message's run in the state of its call context."""

FACTS = "stoppable.facts"
"""The key of what the metadata of a task will say, in the state of the call context of its cancel."""

_BEGUN = "stoppable.begun"
_TEXT_LENGTH = 256  # of an owner and of a label
_GRACE_SECONDS = 3600.0
_REASON_LENGTH = 2000


class Address(NamedTuple):
    """Where a task is found: ids of different owners never meet, because some clients choose them."""

    owner: str | None
    task_id: str

    @classmethod
    def of(cls, context: ServerCallContext, task_id: str) -> Address:
        """Return the address of a task of a caller."""
        return cls(owner_of(context), task_id)


def key_of(agent: str, address: Address) -> str:
    """Return the key of a task's runs, for ``supervisor.stop(key=…)`` and ``supervisor.find``."""
    of_owner = "" if address.owner is None else "@" + quote(address.owner, safe="")
    return f"a2a:{quote(agent, safe='')}{of_owner}/{address.task_id}"


def owner_of(context: ServerCallContext) -> str | None:
    """Return whose runs a caller starts and stops; None without authentication."""
    user = context.user
    return short(user.user_name) if user.is_authenticated and user.user_name else None


def short(text: str) -> str:
    """Return a text that fits an owner or a label."""
    return text if len(text) <= _TEXT_LENGTH else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def mark_begun(context: ServerCallContext) -> None:
    """Note in the context of a message that its execution has begun."""
    context.state[_BEGUN] = True


def has_begun(context: ServerCallContext) -> bool:
    """Return whether the execution of the message of a context has begun."""
    return _BEGUN in context.state


def state_of(status: Status) -> TaskState:
    """Return the state of a task whose run was ended by a stop."""
    return CANCELED if status is Status.STOPPED else FAILED


def id_of(event: Any) -> str | None:
    """Return the id of the task that an event is about; None for an answer without a task."""
    if is_reply(event):
        return None
    task_id: str = event.id if isinstance(event, Task) else event.task_id
    return task_id or None


def stop_facts(run_id: str, outcome: Outcome[Any] | OutcomeRecord, receipt: Receipt | None) -> dict[str, Any]:
    """Return what the metadata of a task says about a run that a stop ended."""
    facts: dict[str, Any] = {
        "run": run_id,
        "status": str(outcome.status),
        "rung": None if outcome.rung is None else str(outcome.rung),
        "clean": outcome.clean,
    }
    if outcome.reason is not None:
        facts |= {
            "kind": str(outcome.reason.kind),
            "reason": outcome.reason.message,
            "actor": outcome.reason.actor,
        }
    if receipt is not None:
        facts |= {
            "mode": None if receipt.mode is None else str(receipt.mode),
            "entries": [{"kind": node.kind, "name": node.name, "fate": str(node.fate)} for node in receipt.entries],
            "enteredAfter": list(receipt.entered_after),
        }
    return {METADATA: facts}


def parked_stop_facts(options: CancelOptions, actor: str | None) -> dict[str, Any]:
    """Return what the metadata of a task says that was canceled while it waited for a message, without a run."""
    facts: dict[str, Any] = {"run": None, "status": str(Status.STOPPED), "rung": None, "clean": True}
    facts |= {"kind": str(ReasonKind.USER), "reason": options.reason, "actor": actor, "mode": str(options.mode)}
    return {METADATA: {**facts, "entries": [], "enteredAfter": []}}


def not_cancelable(task: Task) -> TaskNotCancelableError:
    """Return the error that says how a task ended instead of being canceled."""
    state = TaskState.Name(task.status.state)
    facts = MessageToDict(task.metadata).get(METADATA) if task.HasField("metadata") else None
    doubt = " (unconfirmed: parts of it may still be running)" if _is_lost(facts) else ""
    return TaskNotCancelableError(
        message=f"Task {task.id[:100]} cannot be canceled: it is {state}{doubt}", data={"state": state}
    )


def ended_before(task: Task) -> UnsupportedOperationError:
    """Return the error for a message that was queued behind the run with which its task ended."""
    state = TaskState.Name(task.status.state)
    return UnsupportedOperationError(
        message=f"Task {task.id[:100]} has ended: it is {state}. The message was not executed", data={"state": state}
    )


def _is_lost(facts: Any) -> bool:
    return isinstance(facts, Mapping) and facts.get("status") == Status.LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOptions:
    """The options of the stop that a cancel asks for."""

    mode: Mode
    grace: float | None = None
    reason: str | None = None

    @classmethod
    def of(cls, metadata: Any, mode: Mode, own_grace: float) -> CancelOptions:
        """Return what the metadata of a cancel asks for: ``mode``, ``grace`` and ``reason``, under our name or bare.

        ``remaining`` is what a caller that is itself being stopped has left: it shortens our own grace.
        """
        fields = MessageToDict(metadata) if metadata is not None else {}
        own = fields.get(METADATA)
        fields = {**fields, **own} if isinstance(own, Mapping) else fields
        try:
            mode = Mode.of(fields.get("mode") or mode)
        except stoppable.InvalidArgument as error:
            raise InvalidParamsError(message=str(error)) from None
        grace, remaining, reason = fields.get("grace"), fields.get("remaining"), fields.get("reason")
        for name, value in (("grace", grace), ("remaining", remaining)):
            if value is not None and not (_is_number(value) and 0 <= value <= _GRACE_SECONDS):
                raise InvalidParamsError(message=f"{name} is {value!r:.40}: use seconds from 0 to {_GRACE_SECONDS:.0f}")
        # An explicit grace applies to blind runs too, so it is passed on only if it is clearly shorter than ours.
        # The caller escalates when its own time is over.
        if grace is None and remaining is not None and remaining < own_grace / 2:
            grace = remaining
        if reason is not None and not isinstance(reason, str):
            raise InvalidParamsError(message=f"reason is {reason!r:.40}: use a string")
        return cls(mode=mode, grace=grace, reason=None if reason is None else reason[:_REASON_LENGTH])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_reply(event: object) -> bool:
    """Return whether an event is an answer without a task."""
    return isinstance(event, Message)


_LOOK_SECONDS = 0.05  # another replica may have written it, without a notification


class Ends:
    """Notifies local waiters that a task has reached its terminal state."""

    def __init__(self, on_end: Callable[[Address], None]) -> None:
        self._on_end = on_end
        self._waiters: dict[Address, asyncio.Event] = {}

    def note_saved(self, task: Task, context: ServerCallContext) -> None:
        """Note a state that was stored."""
        if task.status.state in TERMINAL:
            address = Address.of(context, task.id)
            self._on_end(address)
            if (news := self._waiters.pop(address, None)) is not None:
                news.set()

    async def wait(self, address: Address, seconds: float) -> None:
        """Wait until a task has its terminal state, or it is time to read the store again."""
        news = self._waiters.setdefault(address, asyncio.Event())
        try:
            async with asyncio.timeout(min(seconds, _LOOK_SECONDS)):
                await news.wait()
        except TimeoutError:
            pass


class FirstTerminalStays(TaskStore):
    """A task store that refuses to change a terminal state."""

    def __init__(self, store: TaskStore, ends: Ends) -> None:
        self._store, self._ends = store, ends
        self._locks: dict[Address, asyncio.Lock] = {}

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Save a task, unless it has ended in another state."""
        address = Address.of(context, task.id)
        async with self._locks.setdefault(address, asyncio.Lock()):
            stored = await self._store.get(task.id, context)
            if stored is not None and stored.status.state in TERMINAL and stored.status.state != task.status.state:
                return
            await self._store.save(task, context)
        if task.status.state in TERMINAL:
            self._locks.pop(address, None)
        self._ends.note_saved(task, context)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task."""
        return await self._store.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return tasks."""
        return await self._store.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forget a task."""
        await self._store.delete(task_id, context)
        self._locks.pop(Address.of(context, task_id), None)


class VersionedStore(VersionedTaskStore):
    """A versioned task store, which refuses late writes."""

    def __init__(self, store: VersionedTaskStore, ends: Ends) -> None:
        self._store, self._ends = store, ends

    async def save(self, task: Task, *, context: ServerCallContext, **more: Any) -> Any:
        """Keep a task."""
        version = await self._store.save(task, context=context, **more)
        self._ends.note_saved(task, context)
        return version

    async def get(self, task_id: str, context: ServerCallContext) -> StoredTask | None:
        """Return a task with its version."""
        return await self._store.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return tasks."""
        return await self._store.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forget a task."""
        await self._store.delete(task_id, context)


def keep_first_ends(store: TaskStore | VersionedTaskStore, ends: Ends) -> TaskStore | VersionedTaskStore:
    """Return a store in which the first terminal state stays."""
    return VersionedStore(store, ends) if isinstance(store, VersionedTaskStore) else FirstTerminalStays(store, ends)

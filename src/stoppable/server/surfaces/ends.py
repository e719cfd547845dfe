"""How a turn ended, in one value that every protocol can carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from stoppable._core.stop import ReceiptEntry
from stoppable._core.values import Fate, Reason, Status
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.responses import dumps

_ALIVE = (Fate.ABANDONED, Fate.UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a turn ended; ``said`` is the text that it had produced, ``alive`` what may still be running."""

    run_id: str
    status: Status
    said: str
    result: Any = None
    error: str | None = None
    reason: Reason | None = None
    alive: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    """The services that were told to stop and cannot confirm it."""
    ended_at: float | None = None
    facts: Mapping[str, Any]
    """All of this for a field of metadata."""

    @classmethod
    def of(cls, record: RunRecord, said: str | None = None) -> End:
        """Return the end of a run from its record; ``said`` is its text if that is not in the record."""
        outcome, entries = record.outcome, () if record.receipt is None else record.receipt.entries
        assert outcome is not None, "the run has ended"
        reason = outcome.reason
        alive = tuple(_label(entry) for entry in entries if entry.fate in _ALIVE)
        facts = {
            "run": record.id,
            "status": outcome.status.value,
            "reason": reason,
            "rung": outcome.rung,
            "clean": outcome.clean,
            "alive": alive,
            "nodes": [{"kind": entry.kind, "name": entry.name, "fate": entry.fate} for entry in entries],
        }
        return cls(
            run_id=record.id,
            status=outcome.status,
            said=text_of(outcome.partial) if said is None else said,
            result=outcome.result,
            error=None if outcome.error is None else f"{outcome.error.type}: {outcome.error.message}",
            reason=reason,
            alive=alive,
            told=tuple(_label(entry) for entry in entries if entry.fate is Fate.TOLD),
            ended_at=record.ended_at,
            facts=facts,
        )

    @property
    def text(self) -> str:
        """The whole answer: what it said on the way, then its result, unless it has said that already.

        It begins with ``said``, so that a client that has received that only needs the rest.
        """
        said, result = self.said, self.result
        if self.status is not Status.COMPLETED or result is None:
            return said
        if not isinstance(result, str):
            return said or dumps(result).decode()
        if said.rstrip().endswith(result.strip()):
            return said
        if result.startswith(said):
            return result
        separator = "" if said[-1:].isspace() else "\n"
        return f"{said}{separator}{result}"

    @property
    def sentence(self) -> str:
        """One sentence for people, for protocols that have room for it."""
        match self.status:
            case Status.STOPPED:
                why = "" if self.reason is None else f": {self.reason}"
                told = f", but {', '.join(self.told)}, which cannot confirm it" if self.told else ""
                return f"Stopped{why}. Everything it started has ended{told}."
            case Status.LOST:
                return f"The stop is not confirmed: {', '.join(self.alive) or 'a part of it'} may still be running."
            case _:
                return self.error or "Completed."


NO_EFFECT = "The run was stopped before this call began: it had no effect."
MAY_HAVE_TAKEN_EFFECT = "The run was stopped while this call was in flight: it may have taken effect."
NOT_KNOWN = "The run ended before this call was answered: it may have taken effect."
_MAY_BE_RUNNING = "The run was stopped, but it is not confirmed that this call has ended: it may still be running."


def call_sentence(fate: Fate) -> str | None:
    """Return what became of a tool call that was in flight, in the words of the adapters; None if it has finished."""
    match fate:
        case Fate.FINISHED:
            return None
        case Fate.SKIPPED:
            return NO_EFFECT
        case Fate.CLOSED | Fate.INTERRUPTED | Fate.CANCELLED | Fate.KILLED:
            return MAY_HAVE_TAKEN_EFFECT
        case Fate.TOLD | Fate.ABANDONED | Fate.UNREACHABLE:
            return _MAY_BE_RUNNING
        case _:
            assert_never(fate)


def open_call_sentence(status: Status) -> str:
    """Return what is known of a tool call whose run has ended with a status, but whose own end is not in the log."""
    match status:
        case Status.LOST:
            return _MAY_BE_RUNNING
        case Status.STOPPED:
            return MAY_HAVE_TAKEN_EFFECT
        case _:
            return NOT_KNOWN


def _label(entry: ReceiptEntry) -> str:
    return entry.name if entry.kind == "participant" else f"{entry.kind}:{entry.name}"


class Said:
    """The text of a turn as its log tells it: the items of a generator agent, the partials of any other."""

    def __init__(self, *, is_generator: bool) -> None:
        self.is_generator = is_generator
        self.text: str = ""

    def take(self, event: Event) -> str:
        """Take the next event, and return the text that it adds."""
        delta = self._delta(event.type, event.data)
        self.text += delta
        return delta

    def missing(self, whole: str) -> str:
        """Return what is missing of a whole text; nothing if it is another text: what was sent cannot be taken back."""
        return whole[len(self.text) :] if whole.startswith(self.text) else ""

    def _delta(self, kind: EventType, data: Mapping[str, Any]) -> str:
        if self.is_generator:
            is_item = kind is EventType.PROGRESS and data.get("name") == "item" and data.get("data") is not None
            return line_of(data["data"].get("value")) if is_item else ""
        if kind is not EventType.PARTIAL or "omitted" in data:
            return ""
        if "delta" in data:
            return line_of(data["delta"])
        return self.missing(text_of(data.get("value")))


def text_of(value: Any) -> str:
    """Return the text of a partial: what is not text is JSON, and each item of a list stands on a line of its own."""
    if value is None:
        return ""
    return "".join(map(line_of, value)) if isinstance(value, list) else line_of(value)


def line_of(item: Any) -> str:
    """Return the text of one item that was appended to a partial."""
    return item if isinstance(item, str) else f"{dumps(item).decode()}\n"

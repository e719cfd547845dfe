"""What the store of toy_store.py keeps in its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoppable import Answer, Fenced, RunNotFound
from stoppable.records import AuditEntry, Event, Hold, RunRecord, Selector, StopAnswer, StopIntent, StopResult


@dataclass
class News:
    """Whom a call concerns."""

    runs: set[str] = field(default_factory=set)
    workers: set[str] = field(default_factory=set)


@dataclass
class State:
    """All that is kept."""

    runs: dict[str, RunRecord] = field(default_factory=dict)  # in the order in which they were registered
    numbers: dict[str, int] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    events: list[tuple[int, Event]] = field(default_factory=list)
    leases: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    tombstones: dict[tuple[str, str, str | None], tuple[float, StopIntent]] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)
    answered: dict[tuple[str | None, str], tuple[float, StopResult]] = field(default_factory=dict)
    counter: int = 0
    place: int = 0
    news: News = field(default_factory=News)

    def run(self, run_id: str) -> RunRecord:
        if run_id not in self.runs:
            raise RunNotFound(run_id)
        return self.runs[run_id]

    def live(self, run_id: str, epoch: int) -> RunRecord:
        record = self.run(run_id)
        if record.over or record.epoch != epoch:
            raise Fenced(run_id)
        return record

    def tree(self, run_id: str) -> list[RunRecord]:
        nodes = [self.run(run_id)]
        for node in nodes:  # grows while it is walked
            nodes += [record for record in self.runs.values() if record.parent_id == node.id]
        return nodes

    def log(self, run_id: str) -> list[Event]:
        return [event for _, event in self.events if event.run_id == run_id]

    def number(self) -> int:
        self.counter += 1
        return self.counter


def is_matched(selector: Selector, record: RunRecord) -> bool:
    return selector.matches(owner=record.owner, labels=record.labels, agent=record.name, key=record.key)


def chosen_runs(state: State, target: str | Selector, owner: str | None) -> list[RunRecord]:
    """What a stop names: one run, or the topmost of the live ones that a selector matches."""
    if isinstance(target, str):
        record = state.runs.get(target)
        return [record] if record is not None and owner in {None, record.owner} else []
    live = [record for record in state.runs.values() if not record.over and owner in {None, record.owner}]
    found = {record.id: record for record in live if is_matched(target, record)}
    below = {node.id for run_id in found for node in state.tree(run_id)[1:]}
    return [record for run_id, record in found.items() if run_id not in below]


def result_of(
    state: State, answers: Mapping[str, Answer], placed: Hold | None, until: float | None = None
) -> StopResult:
    told = tuple(StopAnswer(record=state.runs[run_id], answer=answer) for run_id, answer in answers.items())
    return StopResult(answers=told, hold=placed, waits_until=until)


def answered_again(state: State, target: str | Selector, first: StopResult) -> StopResult:
    """The answer of before, with the runs as they are now; of those that were purged there is nothing left to say."""
    answers = {one.record.id: one.answer for one in first.answers if one.record.id in state.runs}
    if isinstance(target, str) and not answers:
        raise RunNotFound(target)
    return result_of(state, answers, first.hold, first.waits_until)

"""Tables at any width: a header is whole or not there, and no wider terminal shows less."""

import itertools
import re
from dataclasses import replace

import pytest
from rich.console import Console

from stoppable._core.values import Mode, Reason, Rung, Status
from stoppable.cli import tables
from stoppable.client import AgentInfo
from stoppable.records import AuditEntry, Climb, Hold, RunRecord, RunSummary, Selector

NOW = 1_700_000_000.0
WIDTHS = range(40, 201)
RUN_HEADERS = ["RUN", "AGENT", "OWNER", "STATUS", "STARTED", "TIME", "WHAT"]


def run(number, **fields):
    summary = RunSummary.of(RunRecord(id=f"{number:032x}", name="research", created_at=NOW - 90, status=Status.RUNNING))
    return replace(summary, **fields)


RUNS = [
    run(1, owner="somebody@example.org", in_flight=("llm:plan", "llm:plan", "tool:search")),
    run(2, name="a_rather_long_name_of_an_agent", status=Status.FAILED, error="ValueError: " + "it went wrong " * 20),
    run(3, status=Status.LOST, mode=Mode.GRACEFUL, reason=Reason.of("enough"), created_at=NOW - 400_000),
    run(4, parent_id=f"{1:032x}", labels={"team": "research"}),
]
AGENTS = [
    AgentInfo(
        name="research",
        description="Research a topic with sub-agents. " * 3,
        input={"properties": {"topic": {"type": "string"}}},
    ),
    AgentInfo(name="echo", description="", input={}),
]
HOLDS = [
    Hold(
        id="0123456789ab",
        selector=Selector(owner="somebody@example.org", labels={"team": "a"}),
        reason=Reason.of("budget is used up"),
        created_at=NOW,
    )
]
AUDIT = [
    AuditEntry(
        id=1,
        at=NOW,
        actor="local:somebody",
        action="stop",
        target={"run": f"{1:032x}", "mode": "graceful"},
        result={"runs": {f"{1:032x}": "already_finished"}},
        reason="enough of it " * 5,
    ),
]


def drawn(table, width):
    console = Console(width=width, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as caught:
        console.print(table)
    lines = caught.get().rstrip("\n").split("\n")
    assert all(len(line.rstrip()) <= width for line in lines)
    return [line.rstrip() for line in lines]


def headers_of(lines, known):
    """Return the headers of a table, or None if its rows are stacked."""
    found = re.split(r" {2,}", lines[0])
    if all(header in known for header in found):
        return found
    names = {re.split(r" {2,}", line)[0] for line in lines if line and not line.startswith(" ")}
    assert names == set(known), "every row has every name"
    return None


@pytest.mark.parametrize(
    ("table", "known"),
    [
        (tables.runs(RUNS, NOW), RUN_HEADERS),
        (tables.runs(RUNS, NOW, full=True), RUN_HEADERS),
        (tables.agents(AGENTS), ["AGENT", "TAKES", "WHAT IT DOES"]),
        (tables.holds(HOLDS), ["HOLD", "REFUSES", "SINCE", "REASON"]),
        (tables.audit(AUDIT), ["TIME", "ACTION", "ACTOR", "TARGET", "RESULT", "REASON"]),
    ],
    ids=["runs", "full", "agents", "holds", "audit"],
)
def test_headers_are_whole_at_every_width_and_a_wider_terminal_never_shows_fewer(table, known):
    counts = []
    for width in WIDTHS:
        headers = headers_of(drawn(table, width), known)
        counts.append(len(headers or ()))
    assert all(narrow <= wide for narrow, wide in itertools.pairwise(counts))
    assert counts[-1] == len(known)


@pytest.mark.parametrize(
    ("width", "headers"),
    [
        (40, ["RUN", "AGENT", "STATUS"]),
        (60, ["RUN", "AGENT", "STATUS", "TIME", "WHAT"]),
        (80, RUN_HEADERS),
        (140, RUN_HEADERS),
    ],
)
def test_of_runs_the_least_telling_columns_are_left_out_first(width, headers):
    simple = [run(1, in_flight=("llm:plan",)), run(2, status=Status.COMPLETED)]
    assert headers_of(drawn(tables.runs(simple, NOW), width), RUN_HEADERS) == headers


def test_what_a_run_does_is_readable_at_80_columns():
    stopping = run(
        5,
        status=Status.STOPPING,
        mode=Mode.GRACEFUL,
        reason=Reason.of("wrong topic"),
        in_flight=("llm:gpt-4o-mini-2024-07-18",),
        ladder=(Climb(rung=Rung.INTERRUPT, at=NOW + 9.5),),
    )
    running = run(6, owner="somebody@example.org", in_flight=("llm:gpt-4o-mini-2024-07-18", "tool:search"))
    stopped = run(7, status=Status.STOPPED, mode=Mode.GRACEFUL, reason=Reason.of("the budget of May is used up"))
    text = "\n".join(drawn(tables.runs([stopping, running, stopped], NOW), 80))
    assert "waiting up to 10 s: llm:gpt" in text
    assert "llm:gpt-4o-mini-2024-07-18, " in text
    assert "the budget of May is used up" in text


def test_a_status_with_a_remark_leaves_room_for_what_a_run_does():
    late = run(8, status=Status.LOST, mode=Mode.KILL, reason=Reason.of("enough"), ended_late=NOW - 1)
    stopped = run(9, status=Status.STOPPED, mode=Mode.GRACEFUL, reason=Reason.of("the budget of May is used up"))
    lines = drawn(tables.runs([late, stopped], NOW), 80)
    assert "the budget of May is used up" in "\n".join(lines)
    assert "ended" in "\n".join(lines)  # on a second line


def test_a_child_whose_parent_is_not_listed_is_drawn_as_a_child():
    lines = drawn(tables.runs([run(1), run(2, parent_id="elsewhere", name="below")], NOW), 80)
    assert "└ below" in lines[2]


def test_what_is_always_there_is_never_cut():
    for width in WIDTHS:
        text = "\n".join(drawn(tables.runs(RUNS, NOW), width))
        assert all(f"{number:032x}"[:12] in text for number in range(1, 5))
        assert "? lost" in text
        assert "✗ failed" in text


def test_an_id_that_leaves_no_room_stacks_the_rows():
    lines = drawn(tables.runs([run(1, id="mine-" * 10)], NOW), 60)
    assert lines[0] == f"RUN      {'mine-' * 10}"
    assert [line.split()[0] for line in lines] == RUN_HEADERS


def test_a_full_table_has_whole_ids_and_whole_errors():
    for width in (40, 80, 140, 200):
        text = re.sub(r"\s+", "", "".join(drawn(tables.runs(RUNS, NOW, full=True), width)))
        assert f"{2:032x}" in text
        assert text.count("itwentwrong") == 20
        assert "…" not in text

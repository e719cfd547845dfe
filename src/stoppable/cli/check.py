"""``stoppable check``: whether an agent stops, at each of its boundaries and in each mode."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree as ET

import typer

from stoppable.cli import load, options
from stoppable.cli.exits import Exit, reports_errors
from stoppable.cli.text import safe

if TYPE_CHECKING:
    from stoppable.testing.card import ReportCard


@reports_errors
def check(
    target: options.Target,
    given: options.InputArgument = None,
    within: Annotated[float, typer.Option("--within", metavar="SECONDS", help="The grace that it gets.")] = 2.0,
    most: Annotated[int, typer.Option("--most", min=1, help="How many of its boundaries are tried.")] = 10,
    model: Annotated[bool, typer.Option("--model", help="Give it a scripted model at OPENAI_BASE_URL.")] = False,
    as_json: options.Json = False,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit report.")] = None,
) -> None:
    """Check that an agent stops: run it again and again, and stop it at each of its boundaries in each mode.

    The agent need not use stoppable. Every run has its real effects: give it an input that is safe to repeat.
    """
    from stoppable.testing.card import report_card  # noqa: PLC0415 - only here

    with contextlib.ExitStack() as stack:
        if model:
            from stoppable.demo import demo_model  # noqa: PLC0415 - only here

            stack.enter_context(demo_model(words_per_second=50))
        agent = load.agent(target)
        args, kwargs = load.call(agent, options.arguments(given))
        card = report_card(agent, args, kwargs, within=within, most=most)
    if junit is not None:
        junit.write_text(_junit(card), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(card), "passed": card.passed}, indent=2, default=str))
    else:
        for line in _lines(card):
            typer.echo(safe(line))
    raise typer.Exit(Exit.DONE if card.passed else Exit.FAILED)


def _lines(card: ReportCard) -> list[str]:
    lines = [f"{card.agent}: {len(card.boundaries)} boundaries"]
    for trial in card.trials:
        verdict = "FAIL" if trial.problems else "ok"
        by = f", {trial.rung}" if trial.rung not in {None, "signal"} else ""
        lines.append(f"  {verdict:<4} {trial.mode:<9} at {trial.at}: {trial.status} after {trial.seconds:.2f} s{by}")
        lines += [f"         {problem}" for problem in trial.problems]
    lines += [f"  FAIL went round the boundaries: {found}" for found in card.rounds]
    lines += [f"  note {note}" for note in dict.fromkeys(card.notes)]
    lines.append("passed" if card.passed else "failed")
    return lines


def _junit(card: ReportCard) -> str:
    suite = ET.Element("testsuite", name=f"stoppable check {card.agent}")
    failures = 0
    cases = [(f"{trial.mode} at {trial.at}", trial.seconds, trial.problems) for trial in card.trials]
    for name, seconds, problems in [*cases, ("nothing goes round the boundaries", 0.0, card.rounds)]:
        case = ET.SubElement(suite, "testcase", classname=card.agent, name=name, time=f"{seconds:.3f}")
        if problems:
            failures += 1
            ET.SubElement(case, "failure", message=problems[0]).text = "\n".join(problems)
    suite.set("tests", str(len(cases) + 1))
    suite.set("failures", str(failures))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)

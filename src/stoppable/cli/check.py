"""``stoppable check``: whether an agent stops, at each of its boundaries and in each mode."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree as ET

import typer

from stoppable.cli import find_agent, options
from stoppable.cli.exits import Exit, reports_errors
from stoppable.cli.text import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoppable.agent_check.report import ReportCard, Trial


@reports_errors
def check(
    target: options.Target,
    text: options.InputArgument = None,
    within: Annotated[float, typer.Option("--within", metavar="SECONDS", help="The grace that it gets.")] = 2.0,
    most: Annotated[int, typer.Option("--most", min=1, help="How many of its boundaries are tried.")] = 10,
    model: Annotated[bool, typer.Option("--model", help="Give it a scripted model at OPENAI_BASE_URL.")] = False,
    as_json: options.Json = False,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit report.")] = None,
) -> None:
    """Check that an agent stops: run it again and again, and stop it at each of its boundaries in each mode.

    The agent need not use stoppable. Every run has its real effects: give it an input that is safe to repeat.
    """
    from stoppable.agent_check.trials import check_agent  # noqa: PLC0415 - only here

    with contextlib.ExitStack() as stack:
        if model:
            from stoppable.demo import demo_model  # noqa: PLC0415 - only here

            stack.enter_context(demo_model(words_per_second=50))
        agent = find_agent.agent(target)
        args, kwargs = find_agent.call(agent, options.arguments(text))
        card = check_agent(agent, args, kwargs, within=within, most=most)
    if junit is not None:
        junit.write_text(_junit(card), encoding="utf-8")
    if as_json:
        whole = {"problems": card.problems, "remedies": card.remedies, "passed": card.passed}
        typer.echo(json.dumps({**dataclasses.asdict(card), **whole}, indent=2, default=str))
    else:
        for line in _lines(card):
            typer.echo(safe(line))
    raise typer.Exit(Exit.DONE if card.passed else Exit.FAILED)


def _lines(card: ReportCard) -> list[str]:
    lines = [f"{card.agent}: {len(card.boundaries)} boundaries"]
    for trial in card.trials:
        lines.append(f"  {_verdict(trial):<4} {trial.mode:<9} at {trial.at}: {_end_of(trial)}")
        lines += _problems(trial.problems, trial.remedies)
    for problem, remedy in zip(card.problems, card.remedies, strict=True):
        lines += [f"  FAIL {problem}", *_problems((), (remedy,))]
    lines += [f"  note {note}" for note in dict.fromkeys(card.notes)]
    if any(_force(trial) for trial in card.trials):
        lines.append(
            "force: the strongest means that a stop came to; interrupt < cancel < kill: docs/semantics.md#ladder"
        )
    lines.append("passed" if card.passed else "failed")
    return lines


def _verdict(trial: Trial) -> str:
    if trial.problems:
        return "FAIL"
    return "ok" if trial.reached else "-"


def _end_of(trial: Trial) -> str:
    if not trial.reached:
        return f"not reached, the run {'failed' if trial.status == 'failed' else 'ended'} without it"
    return f"{trial.status} after {trial.seconds:.2f} s{_force(trial)}"


def _force(trial: Trial) -> str:
    return "" if trial.rung in {None, "signal", "lost"} or not trial.reached else f" (force: {trial.rung})"


def _problems(problems: Sequence[str], remedies: Sequence[str]) -> list[str]:
    return [*(f"         {problem}" for problem in problems), *(f"         -> {remedy}" for remedy in remedies)]


def _junit(card: ReportCard) -> str:
    suite = ET.Element("testsuite", name=f"stoppable check {card.agent}")
    for trial in card.trials:
        _case(
            suite,
            card,
            f"{trial.mode} at {trial.at}",
            trial.seconds,
            trial.problems,
            trial.remedies,
            is_reached=trial.reached,
        )
    _case(suite, card, "nothing goes round the boundaries", 0.0, card.problems, card.remedies)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("*/failure"))))
    suite.set("skipped", str(len(suite.findall("*/skipped"))))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def _case(
    suite: ET.Element,
    card: ReportCard,
    name: str,
    seconds: float,
    problems: Sequence[str],
    remedies: Sequence[str],
    *,
    is_reached: bool = True,
) -> None:
    case = ET.SubElement(suite, "testcase", classname=card.agent, name=name, time=f"{seconds:.3f}")
    if problems:
        ET.SubElement(case, "failure", message=problems[0]).text = "\n".join([*problems, *remedies])
    elif not is_reached:
        ET.SubElement(case, "skipped", message="not reached")

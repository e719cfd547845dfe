"""The command `stopbench`: `run` measures, `report` writes the table, `subjects` lists what can be measured."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from stopbench import environments, report, results, trial
from stopbench.environments import Description
from stopbench.results import VARIANTS, Results
from stopbench.scenarios import SCENARIOS


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command."""
    options = _parser().parse_args(arguments)
    match options.command:
        case "run":
            return run(options)
        case "report":
            found = results.read(options.results)
            if options.markdown is not None:
                options.markdown.write_text(report.markdown(found))
            if options.html is not None:
                options.html.write_text(report.page(found))
            if options.markdown is None and options.html is None:
                print(report.markdown(found))
        case _:
            for name in environments.names():
                print(f"{name:20}{environments.find(name).about}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Measure, and write what was found after each trial."""
    subjects = [environments.find(name) for name in options.subject or environments.names()]
    found = results.read(options.output)
    found.facts = facts(options)
    lock = threading.Lock()

    def measure(subject: Description, variant: str) -> None:
        python = pythons.get(subject.name)
        if python is None:
            return
        spec = trial.Spec(
            python=python,
            file=str(subject.file),
            variant=variant,
            sub_agent=subject.sub_agent,
            final_tool=subject.final_tool,
            trials=trials(subject, options),
        )
        with lock:
            for name in {name for name, _ in spec.trials}:
                found.cells.pop((subject.name, variant, name), None)
        for seen in trial.start(spec):
            with lock:
                found.subjects[subject.name]["versions"] |= seen.versions
                found.cell(subject.name, variant, seen.scenario).add(seen)
                results.write(options.output, found)
                _say(options, f"{subject.name}, {variant}, {seen.scenario}: {_outcome(found, subject, variant, seen)}")

    pythons: dict[str, str] = {}
    for subject in subjects:
        found.subjects[subject.name] = {"about": subject.about, "cancel": subject.cancel, "versions": {}}
        try:
            pythons[subject.name] = environments.make(
                subject, options.environments, options.stoppable, as_installed=options.as_installed
            )
        except Exception as error:
            _say(options, f"{subject.name} cannot be installed: {error}")
            found.subjects[subject.name]["about"] += " It could not be installed."
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in [
            pool.submit(measure, each, variant) for each in subjects for variant in options.variant or VARIANTS
        ]:
            done.result()
    results.write(options.output, found)
    if options.json:
        print(json.dumps(found.as_json()))
    return 0


def trials(subject: Description, options: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """Return the scenarios that a subject can be in, each as often as it is repeated, with the seed of each."""
    names = [
        name
        for name, scenario in SCENARIOS.items()
        if (not options.scenario or name in options.scenario)
        and (subject.sub_agent is not None or not scenario.delegates)
        and (subject.serves or not scenario.ends_server)
    ]
    return tuple(
        (name, f"{options.seed}:{subject.name}:{name}:{time}") for time in range(options.repeat) for name in names
    )


def facts(options: argparse.Namespace) -> dict[str, str]:
    """Return what a reader must know about the machine; nothing that names it."""
    return {
        "Date": datetime.now(UTC).date().isoformat(),
        "Machine": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()[:4]}",
        "Python": platform.python_version(),
        "Load average before the run": f"{os.getloadavg()[0]:.1f}",
        "Trials of each cell": f"{options.repeat}, seed {options.seed}",
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _outcome(found: Results, subject: Description, variant: str, seen: trial.Observation) -> str:
    if seen.failure:
        return f"not measured: {seen.failure}"
    scores = found.cell(subject.name, variant, seen.scenario).trials[-1]
    return ", ".join(score.words for score in scores.values() if score.is_wrong) or "right"


def _say(options: argparse.Namespace, text: str) -> None:
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stopbench", description="Does your agent stop?")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="stop agents, and write what happened")
    run.add_argument("--subject", action="append", metavar="NAME", help="one of `stopbench subjects`, or a file; all")
    run.add_argument("--variant", action="append", choices=VARIANTS, help="all")
    run.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="all")
    run.add_argument("--repeat", type=int, default=5, help="trials of each cell (5)")
    run.add_argument("--seed", default="1", help="chooses the moment of each stop (1)")
    run.add_argument("--jobs", type=int, default=2, help="variants that are measured at once (2)")
    run.add_argument("--environments", type=Path, default=Path(".stopbench"), help="where they are made (.stopbench)")
    run.add_argument("--stoppable", metavar="FOLDER", help="its source; the package of the index")
    run.add_argument("--as-installed", action="store_true", help="do not bring environments up to date")
    run.add_argument("--output", type=Path, default=Path("stopbench.json"), help="added to if it is there")
    run.add_argument("--json", action="store_true", help="print the results as JSON")
    written = commands.add_parser("report", help="write the table")
    written.add_argument("results", type=Path, nargs="?", default=Path("stopbench.json"))
    written.add_argument("--markdown", type=Path)
    written.add_argument("--html", type=Path)
    commands.add_parser("subjects", help="list what can be measured")
    return parser


if __name__ == "__main__":
    sys.exit(main())

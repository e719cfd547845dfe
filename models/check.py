"""Checks the properties of the models; each deliberate mistake in them must break the property it names and no other.

    python models/check.py ladder tree    # only these; all of them without a name

A mutant is a -D flag, listed at the head of its model with that property. Everything is left in models/build: the
verifiers, what they said, and the trails of the counterexamples (docs/decisions/0006 says how to read one).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE / "build"
COMPILER = os.environ.get("CC", "cc")
DEPTH = 100_000
MEGABYTES = 3_000
SECONDS = 600

# NFAIR: room for the counters of weak fairness, for up to 14 processes.
COMPILE = [COMPILER, "-O2", "-w", "-DNFAIR=3", f"-DMEMLIM={MEGABYTES}", "-o", "pan", "pan.c"]
# -a -f: look for cycles in which nothing good happens though every process gets its turns.
SEARCH = ["../pan", "-a", "-f", f"-m{DEPTH}", "-N"]

HOLDS, VIOLATED = "holds", "violated"
COUNTEREXAMPLE = re.compile(r"^pan:1: (acceptance cycle|assertion violated)", re.MULTILINE)
# What a search says when it has not looked everywhere: then no counterexample means nothing.
INCOMPLETE = ("max search depth too small", "out of memory", "MEMLIM bound", "not completed", "aborting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model, as it is or with one mistake."""

    model: Path
    mutant: str | None = None
    breaks: str | None = None

    @property
    def name(self) -> str:
        return self.model.stem + (f"-{self.mutant}" if self.mutant else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the search for a counterexample to one property came to."""

    verdict: str
    states: str
    seconds: float


def properties(model: Path) -> list[str]:
    return re.findall(r"^ltl (\w+)", model.read_text(), re.MULTILINE)


def mutants(model: Path) -> dict[str, str]:
    """The mutants at the head of a model, each with the property that it breaks."""
    text = model.read_text()
    listed = dict(re.findall(r"^ +-D(\w+) +(\w+) ", text, re.MULTILINE))
    used = set(re.findall(r"^#\s*ifn?def (\w+)", text, re.MULTILINE)) | set(re.findall(r"defined\((\w+)\)", text))
    if used != set(listed) or not set(listed.values()) <= set(properties(model)):
        sys.exit(f"{model.name}: the list of mutants does not fit the flags and properties below it")
    return listed


def variants(names: list[str]) -> list[Variant]:
    """Return those of the named models, or of all."""
    found = []
    for model in sorted(HERE.glob("*.pml")):
        if names and model.stem not in names:
            continue
        found.append(Variant(model=model))
        found += [Variant(model=model, mutant=name, breaks=broken) for name, broken in mutants(model).items()]
    return found


def judge(output: str, code: int) -> str:
    """A counterexample is one wherever it was found; that there is none, only a complete search can say."""
    if COUNTEREXAMPLE.search(output):
        return VIOLATED
    incomplete = [words for words in INCOMPLETE if words in output]
    if code == 0 and not incomplete and re.search(r"errors: 0$", output, re.MULTILINE):
        return HOLDS
    return f"unknown: {incomplete[0] if incomplete else f'the search ended with code {code}'}"


def run(place: Path, command: list[str]) -> tuple[str, int]:
    try:
        done = subprocess.run(
            command,
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not completed within {SECONDS} s", 1
    return done.stdout, done.returncode


def build(variant: Variant) -> None:
    place = BUILD / variant.name
    place.mkdir(parents=True)
    flags = [f"-D{variant.mutant}"] if variant.mutant else []
    for command in (["spin", "-a", *flags, f"../../{variant.model.name}"], COMPILE):
        output, code = run(place, command)
        if code:
            raise RuntimeError(f"{variant.name}: {' '.join(command)}\n{output}")


def search(variant: Variant, wanted: str) -> Result:
    place = BUILD / variant.name / wanted
    place.mkdir()  # pan writes its trail where it stands
    begin = time.monotonic()
    output, code = run(place, [*SEARCH, wanted])
    seconds = time.monotonic() - begin
    (place / "output").write_text(output)
    for trail in place.glob("*.trail"):
        trail.rename(place / "trail")
    states = re.search(r"^ *(\S+) states, stored", output, re.MULTILINE)
    return Result(verdict=judge(output, code), states=states[1] if states else "?", seconds=seconds)


def main() -> int:
    missing = [tool for tool in ("spin", COMPILER) if shutil.which(tool) is None]
    if missing:
        sys.exit(
            f"To check the models, install {' and '.join(missing)}"
            " (Debian: apt-get install spin gcc; macOS: brew install spin)."
        )
    shutil.rmtree(BUILD, ignore_errors=True)
    everything = variants(sys.argv[1:])
    unexpected = 0
    print(f"{'variant':34} {'property':24} {'found':10} {'states':>9} {'seconds':>8}")
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
        list(pool.map(build, everything))
        searches = [
            (variant, wanted, pool.submit(search, variant, wanted))
            for variant in everything
            for wanted in properties(variant.model)
        ]
        for variant, wanted, future in searches:
            result = future.result()
            as_expected = result.verdict == (VIOLATED if wanted == variant.breaks else HOLDS)
            unexpected += not as_expected
            row = f"{variant.name:34} {wanted:24} {result.verdict:10} {result.states:>9} {result.seconds:8.1f}"
            print(row + ("" if as_expected else "   UNEXPECTED"), flush=True)
    print(f"{len(searches)} searches, {unexpected} unexpected")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())

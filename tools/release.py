"""Builds the wheel and the source archive into dist/, and tries them as users will; it publishes nothing.

`make release` can be run at any time. `make release TAG=v0.1.0` refuses what is not ready for that tag, before anything
else; .github/workflows/release.yml calls it like that. docs/releasing.md says what a release needs besides.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
BIN = Path(sys.executable).parent
TEST = re.compile(r"(^|/)(tests?/|test_[^/]*\.py$|conftest\.py$)")
_HIDDEN = ("COVERAGE", "PYTHON", "STOPPABLE_", "TAG", "VIRTUAL_ENV")
MINUTES = 15
"""For one command; only a defect, or a very slow network for the packages, takes that long."""


def find_version(root: Path) -> str:
    """Return the version; the one place where it is written is also the one that the build reads."""
    return _find(r'^__version__ = "(.+)"$', root / "src/stoppable/__init__.py")[0]


def list_mistakes(root: Path, tag: str | None) -> list[str]:
    """Return what disagrees with the version, and what is not ready for a tag, one sentence each."""
    version = find_version(root)
    mistakes = []
    package = json.loads((root / "js/stoppable-button/package.json").read_text())["version"]
    if package != version:
        mistakes.append(f"js/stoppable-button/package.json says {package}, src/stoppable/__init__.py {version}")
    listed, when = _find(r"^## (\S+) \((.+)\)$", root / "CHANGELOG.md")
    if listed != version:
        mistakes.append(f"the first section of CHANGELOG.md is {listed}, src/stoppable/__init__.py says {version}")
    if tag is None:
        return mistakes
    if tag != f"v{version}":
        mistakes.append(
            f"the tag is {tag}, src/stoppable/__init__.py says {version}: tag v{version}, or change the version"
        )
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", when):
        mistakes.append(f"CHANGELOG.md says that {listed} is {when}: write the date of the release there")
    if "not yet on PyPI" in (root / "README.md").read_text():
        mistakes.append("README.md says 'not yet on PyPI', and will be shown there: say how to install it from PyPI")
    return mistakes


def _find(pattern: str, path: Path) -> tuple[str, ...]:
    found = re.search(pattern, path.read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"nothing in {path} matches {pattern}")
    return found.groups()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What was built, with the names of the files in it."""

    wheel: Path
    source: Path

    @property
    def in_wheel(self) -> set[str]:
        """Return the files of the wheel without its metadata."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    @property
    def in_source(self) -> set[str]:
        """Return the files of the source archive without its metadata."""
        with tarfile.open(self.source) as archive:
            names = {member.name.partition("/")[2] for member in archive if member.isfile()}
        return names - {"PKG-INFO"}


def build(folder: Path) -> Built:
    """Build the source archive, and the wheel from it."""
    shutil.rmtree(folder, ignore_errors=True)
    call(BIN / "uv", "build", "--quiet", "--out-dir", folder, ROOT, cwd=ROOT)
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel=wheel, source=source)


def list_tracked() -> set[str]:
    """Return the files that git knows."""
    return set(call("git", "ls-files", "-z", cwd=ROOT).split("\0"))


def list_strangers(built: Built, tracked: set[str]) -> list[str]:
    """Return what is in the archives and should not be, or the other way round, one sentence each.

    The wheel has every file of src/stoppable and nothing else; the source archive has only files that git knows.
    """
    package = {name.removeprefix("src/") for name in tracked if name.startswith("src/stoppable/")}
    return [
        *(f"the wheel has {name}, which git does not know" for name in sorted(built.in_wheel - package)),
        *(f"the wheel lacks {name}" for name in sorted(package - built.in_wheel)),
        *(f"the wheel has the test {name}" for name in sorted(built.in_wheel) if TEST.search(name)),
        *(f"the source archive has {name}, which git does not know" for name in sorted(built.in_source - tracked)),
    ]


def call(*command: str | Path, cwd: Path, code: int = 0, **environment: str) -> str:
    """Call a command as a user would, without the environment that this program runs in, and return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if name != "UV" and not name.startswith(_HIDDEN)}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**inherited, "NO_COLOR": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MINUTES * 60,
        check=False,
    )
    if done.returncode != code:
        sys.exit(f"{shlex.join(map(str, command))} ended with {done.returncode}, not {code}:\n{done.stdout}")
    return done.stdout


class Trial:
    """What users do with the wheel, in an empty folder that is removed afterwards."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self._wheel, self._folder = wheel, folder
        self._empty = folder / "empty"
        self._empty.mkdir()

    def use_it_alone(self) -> None:
        """Install it without any extra, and run the first example of the README."""
        python = self._install("alone", str(self._wheel))
        packages = self._call(BIN / "uv", "pip", "list", "--quiet", "--python", python, "--format", "freeze").split()
        if packages != [f"stoppable=={find_version(ROOT)}"]:
            sys.exit(f"without an extra, {packages} are installed")
        [example] = _find(r"^```python\n((?:.*\n)*?)```$", ROOT / "README.md")
        self._call(python, "-X", "dev", "-W", "error", "-c", example)

    def run_without_installing(self) -> None:
        """Type `stoppable demo` with uvx and pipx, and then what it says to type."""
        self._type_again("uvx", "--from", self._wheel)
        self._type_again("pipx", "run", "--no-path-check", "--spec", self._wheel)

    def _type_again(self, *command: str | Path) -> None:
        program, *options = command
        said = self._call(BIN / program, *options, "stoppable", "demo", "--fast", code=1)
        again = re.search(rf"^error: .*: ({program} .* stoppable demo --fast)$", said, re.MULTILINE)
        if again is None:
            sys.exit(f"{program} does not say what to type: {said}")
        self._expect_demo(self._call(BIN / program, *shlex.split(again[1])[1:]))

    def use_everything(self) -> tuple[Path, float]:
        """Install it with `all`, and run the demo; return the interpreter, and how long the installation took."""
        begin = time.monotonic()
        python = self._install("all", f"stoppable[all] @ {self._wheel.as_uri()}")
        seconds = time.monotonic() - begin
        version = self._call(python.parent / "stoppable", "--version").strip()
        if version != find_version(ROOT):
            sys.exit(f"the wheel is stoppable {version}")
        self._expect_demo(self._call(python.parent / "stoppable", "demo"))
        return python, seconds

    def type_the_tutorial(self) -> None:
        """Type it with this wheel where it has a clone."""
        call(sys.executable, "-m", "pytest", "-q", "tests/tutorial", cwd=ROOT, STOPPABLE_WHEEL=str(self._wheel))

    def _install(self, name: str, package: str) -> Path:
        environment = self._folder / name
        self._call(BIN / "uv", "venv", "--quiet", "--python", sys.executable, environment)
        self._call(BIN / "uv", "pip", "install", "--quiet", "--python", environment / "bin/python", package)
        return environment / "bin/python"

    def _call(self, *command: str | Path, code: int = 0) -> str:
        return call(*command, cwd=self._empty, code=code, PIPX_HOME=str(self._folder / "pipx"))

    @staticmethod
    def _expect_demo(printed: str) -> None:
        if "as expected: B is stopped" not in printed:
            sys.exit(f"the demo prints something else: {printed}")


def write_sbom(python: Path, path: Path) -> int:
    """Write the packages of an environment as a bill of materials of stoppable, and return how many there are."""
    options = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--output-reproducible", "--of", "JSON")
    call(BIN / "cyclonedx-py", "environment", *options, "-o", path, python, cwd=ROOT)
    bill = json.loads(path.read_text())
    bill["metadata"]["component"]["version"] = find_version(ROOT)  # pyproject.toml says where it is
    path.write_text(json.dumps(bill, indent=2) + "\n")
    return len(bill["components"])


def refuse(mistakes: Iterable[str]) -> None:
    """End if there are any."""
    if listed := list(mistakes):
        sys.exit("\n".join(f"error: {mistake}" for mistake in listed))


def say(what: str, text: str) -> None:
    """Print a line of the table."""
    print(f"{what:15} {text}", flush=True)


def _kilobytes(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.0f} kB"


def main() -> None:
    """Do what the docstring of the module says."""
    begin = time.monotonic()
    tag = os.environ.get("TAG") or None
    refuse(list_mistakes(ROOT, tag))
    version = find_version(ROOT)
    say("version", f"{version}: the code, CHANGELOG.md and package.json agree{f', and so does {tag}' if tag else ''}")
    built = build(DIST)
    refuse(list_strangers(built, list_tracked()))
    say(
        "wheel", f"{_kilobytes(built.wheel)}, {len(built.in_wheel)} files: all of src/stoppable, no tests, nothing else"
    )
    say("source archive", f"{_kilobytes(built.source)}, {len(built.in_source)} files, all of which git knows")
    call(BIN / "twine", "check", "--strict", built.wheel, built.source, cwd=ROOT)
    call(BIN / "check-wheel-contents", built.wheel, cwd=ROOT)
    say("metadata", "twine and check-wheel-contents find nothing")
    with tempfile.TemporaryDirectory(prefix="stoppable-release-") as folder:
        trial = Trial(built.wheel, Path(folder))
        trial.use_it_alone()
        say("alone", "it brings no other package, and the first example of the README runs")
        trial.run_without_installing()
        say("uvx, pipx", "`stoppable demo` says what to type, and that works")
        python, seconds = trial.use_everything()
        say("stoppable[all]", f"installed in {seconds:.1f} s, and `stoppable demo` works")
        bill = DIST / f"stoppable-{version}.cdx.json"
        say("SBOM", f"dist/{bill.name} lists the {write_sbom(python, bill)} packages of stoppable[all]")
        trial.type_the_tutorial()
        say("tutorial", "works word for word")
    say("done", f"in {time.monotonic() - begin:.0f} s; dist/ has what can be published")


if __name__ == "__main__":
    main()

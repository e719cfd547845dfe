"""Every code block in README and docs is executed; every example runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(*languages):
    for page in PAGES:
        for number, (language, code) in enumerate(BLOCK.findall(page.read_text()), 1):
            if language in languages:
                yield pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(70)
@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_blocks_run(code):
    run("-X", "dev", "-W", "error", "-c", code)


@pytest.mark.parametrize("code", list(blocks("sh")))
def test_commands_are_targets_that_continuous_integration_calls(code):
    """The commands themselves are run by .ci/run, on a clean clone; the benchmark is run by hand."""
    called = (ROOT / ".ci/run").read_text()
    for line in code.splitlines():
        command = line.split("#")[0].strip()
        assert command == "make bench" or command in called, command


def test_every_block_has_a_language_that_is_tested():
    for page in PAGES:
        for language, code in BLOCK.findall(page.read_text()):
            assert language in {"python", "sh"}, f"{page.name}: {code[:60]}"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example):
    assert run("-X", "dev", "-W", "error", str(example))


def test_the_first_example_prints_what_the_readme_says():
    code = next(code for language, code in BLOCK.findall((ROOT / "README.md").read_text()) if language == "python")
    output = run("-c", code)
    assert output.startswith("('llm:ask',)\nstopped an answer to question 0\n")


def test_links_in_the_docs_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"

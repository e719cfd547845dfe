"""Every code block in README and docs is executed; every example runs."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stoppable.cli import screen
from stoppable.cli.command_line import command_line

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "a2a.md",
    "acp.md",
    "adk.md",
    "deploy.md",
    "frameworks.md",
    "ag-ui.md",
    "agent-framework.md",
    "langgraph.md",
    "local-models.md",
    "llama-index.md",
    "openai-agents.md",
    "mcp.md",
    "mcp-server.md",
    "openai.md",
    "openai-api.md",
    "six-clients.md",
    "openhands.md",
    "openhands_stop.py",
    "postgres.md",
    "pydantic-ai.md",
    "smolagents.md",
    "strands.md",
    "autogen.md",
    "claude-agent-sdk.md",
    "crewai.md",
    "three_tasks_a2a.py",
    "langgraph-api.md",
    "vercel-ai.md",
}  # executed by tests/adapters, deploy, fleet, frameworks, model_clients and surfaces, where it is installed
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in ELSEWHERE),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8420"
TUTORIAL = ROOT / "docs/tutorial.md"  # typed by tests/tutorial; its first block is the file agents.py of other pages


def blocks_of(page, *languages):
    return [code for language, code in BLOCK.findall(page.read_text()) if language in languages]


def blocks(*languages):
    for page in PAGES:
        for number, (language, code) in enumerate(BLOCK.findall(page.read_text()), 1):
            if language in languages:
                yield pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")


def is_made(code):
    """Return whether a block only has targets of make."""
    return all(line.startswith("make ") for line in code.splitlines())


def needs_server(code):
    return "stoppable.client" in code


def run(*command, **environment):
    with tempfile.TemporaryDirectory() as folder:  # some write files where they are
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=folder,
            env={**os.environ, **environment},
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(70)
@pytest.mark.parametrize("code", [block for block in blocks("python") if not needs_server(block.values[0])])
def test_python_blocks_run(code):
    run("-X", "dev", "-W", "error", "-c", code)


@pytest.mark.parametrize("code", [block for block in blocks("sh") if is_made(block.values[0])])
def test_commands_are_targets_that_continuous_integration_calls(code):
    """The commands themselves are run by .ci/run, on a clean clone; the benchmark and the flakes are run by hand."""
    called = (ROOT / ".ci/run").read_text()
    for line in code.splitlines():
        command = line.split("#")[0].strip()
        assert command in {"make bench", "make faults", "make flakes"} or command in called, command


SESSIONS = [
    page
    for page in PAGES
    if page != TUTORIAL
    and (any(not is_made(code) for code in blocks_of(page, "sh")) or any(map(needs_server, blocks_of(page, "python"))))
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_tells_to_type_works_from_top_to_bottom(page):
    """A `stoppable serve` goes on beside the commands after it, on a port that is free."""
    if "curl" in page.read_text() and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        [agents] = [code for code in blocks_of(TUTORIAL, "python") if code.startswith("# agents.py\n")]
        Path(folder, "agents.py").write_text(agents)
        session = Session(folder, stack)
        for language, code in BLOCK.findall(page.read_text()):
            if language == "python" and needs_server(code):
                session.run(sys.executable, "-X", "dev", "-W", "error", "-c", code)
            elif language == "sh" and not is_made(code):
                session.type(code)


class Session:
    """A folder, and a server once one was started."""

    def __init__(self, folder, stack):
        self._folder, self._stack = folder, stack
        self._url = ADDRESS
        tools = Path(sys.executable).parent
        self._environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}

    def type(self, code):
        for line in code.splitlines():
            command = line.split("  #")[0].strip()
            if command.startswith("stoppable serve"):
                self._url = self._stack.enter_context(self._serving(f"{command} --port 0"))
            elif command.startswith("stoppable ") and not any(part in command for part in ("||", "run ", "check ")):
                self._call(*shlex.split(command)[1:])
            elif command:
                self.run("bash", "-ec", command.replace(ADDRESS, self._url))

    def _call(self, *arguments):
        """Call the command in this process, which is much faster; tests/cli sees to the rest of it."""
        screen.out.cache_clear()
        screen.err.cache_clear()
        done = CliRunner().invoke(command_line(), list(arguments), env={"STOPPABLE_URL": self._url})
        assert done.exit_code == 0, f"{arguments}: {done.output}"

    def run(self, *command):
        environment = {**self._environment, "STOPPABLE_URL": self._url}
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        assert '"error"' not in done.stdout, f"{command}: {done.stdout}"

    @contextlib.contextmanager
    def _serving(self, command):
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        killer = threading.Timer(90, process.kill)
        killer.start()
        try:
            for line in process.stderr:
                if found := re.search(r"at (http://\S+)", line):
                    break
            else:
                raise AssertionError(f"{command!r} does not start")
            reader = threading.Thread(target=process.stderr.read, daemon=True)
            reader.start()
            yield found[1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
            reader.join(60)
        finally:
            process.kill()
            process.wait(60)
            killer.cancel()
            killer.join(60)
            process.stderr.close()


def test_every_block_has_a_language_that_is_tested():
    for page in PAGES:
        for language, code in BLOCK.findall(page.read_text()):
            # Pages in HTML are opened in a browser, by tests/browser; the files in drawings are looked up by
            # test_architecture.py.
            # The change of the FastAPI page is applied by tests/server/test_fastapi_page.py.
            # The components of React are compiled and opened by tests/browser/test_react.py.
            drawings = {"architecture.md": {"text"}, "fastapi.md": {"diff"}, "embedding.md": {"tsx"}}.get(
                page.name, set()
            )
            assert language in {"python", "sh", "html"} | drawings, f"{page.name}: {code[:60]}"


EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in ELSEWHERE]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example):
    assert run("-X", "dev", "-W", "error", str(example), STEP_SECONDS="0.02")


def test_the_first_example_prints_what_the_readme_says():
    code = next(code for language, code in BLOCK.findall((ROOT / "README.md").read_text()) if language == "python")
    output = run("-c", code)
    assert output.startswith("('llm:ask',)\nstopped answer 0\n")


def test_links_in_the_docs_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"

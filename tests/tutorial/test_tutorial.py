"""The tutorial works as it is written: in a fresh clone, in an empty environment, typed word for word.

With STOPPABLE_WHEEL it is that wheel instead of the clone, as after a release.
"""

import codecs
import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ..ports import held_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORT = 8420
WHEEL = os.environ.get("STOPPABLE_WHEEL")
SECONDS = 600  # only a defect, or a very slow network for the packages, takes that long


class Terminal:
    """A shell that is typed into."""

    def __init__(self, folder: Path) -> None:
        hidden = ("VIRTUAL_ENV", "PYTHON", "STOPPABLE_", "COVERAGE", "COV_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self._shell = subprocess.Popen(
            ["bash", "--norc", "-e"],
            cwd=folder,
            env={**environment, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            process_group=0,
        )
        self._read = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # what is read may end within a character

    def type(self, text: str) -> None:
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    def shows(self, pattern: str) -> str:
        """Wait until something is shown, and return what was since the last time."""
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(pattern, self._read)):
            if not select.select([self._shell.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"{pattern!r} is not shown: {self._read}")
            more = os.read(self._shell.stdout.fileno(), 65536)
            assert more, f"the terminal ended, {pattern!r} is not shown: {self._read}"
            self._read += self._decoder.decode(more)
        shown, self._read = self._read[: found.end()], self._read[found.end() :]
        return shown

    def run(self, code: str) -> str:
        """Type commands, which must succeed, and return what they show."""
        self.type(f"{code}\necho '= d''one ='\n")
        return self.shows("= done =\n")

    def press_ctrl_c(self) -> None:
        """Interrupt what runs in the terminal; the shell itself goes on."""
        self._children(signal.SIGINT)

    def _children(self, number: int) -> None:
        listed = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text()
        for pid in listed.split():
            os.kill(int(pid), number)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(10)
        self._shell.stdin.close()
        self._shell.stdout.close()


def clone(folder: Path) -> Path:
    """Copy the files that git knows, as they are now; none, if a wheel is installed instead."""
    folder.mkdir()
    if WHEEL:
        return folder
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return folder


def free_port(stack: contextlib.ExitStack) -> int:
    """Return the port that the tutorial uses, or another one if something else has it; it is kept free meanwhile."""
    try:
        return stack.enter_context(held_port(PORT))
    except OSError:
        return stack.enter_context(held_port())


@pytest.mark.timeout(3 * SECONDS)
def test_the_tutorial_works_word_for_word(tmp_path):
    repository = clone(tmp_path / "stoppable")
    with contextlib.ExitStack() as stack:
        port = free_port(stack)
        first = Terminal(repository)
        stack.callback(first.close)
        shown = {}
        for language, code in BLOCK.findall(
            PAGE.replace('".[all]"', f'"stoppable[all] @ file://{WHEEL}"') if WHEEL else PAGE
        ):
            if language == "python":
                (repository / "tutorial" / code.split("\n")[0].removeprefix("# ")).write_text(code)
            elif "stoppable serve" in code:
                second = Terminal(repository / "tutorial")
                stack.callback(second.close)
                second.type(code.strip() + ("\n" if port == PORT else f" --port {port}\n"))
                second.shows("Ctrl-C here ends the server")
                if port != PORT:
                    first.run(f"export STOPPABLE_URL=http://127.0.0.1:{port}")
            elif "press Ctrl-C" in code:
                first.type(f"set +e\n{code}echo '= d''one ='\nset -e\n")  # it does not end with 0
                first.shows("step=2")
                first.press_ctrl_c()
                shown[code] = first.shows("= done =\n")
            else:
                if "runs/first/stop" in code:  # nobody types so fast that it has not begun
                    first.run(
                        f"until curl -s http://127.0.0.1:{port}/runs/first/tree | grep -q llm:ask; do sleep 0.1; done"
                    )
                listed = re.search(r"^HOLD .*\n(\S+) ", "".join(shown.values()), re.MULTILINE)
                typed = code.replace("release HOLD", f"release {listed[1]}") if listed else code
                shown[code] = first.run(typed.replace(str(PORT), str(port)))
        second.press_ctrl_c()
        second.type("echo '= d''one ='\n")
        second.shows("= done =\n")
    check(shown)


def check(shown):
    """See that each step shows what the page says."""

    def after(command):
        [text] = [text for code, text in shown.items() if command in code]
        return text

    assert "2 answers" in after("'{\"rounds\": 2}'")
    assert re.search(r"■ stopped.*reason +Ctrl-C", after("press Ctrl-C"), re.DOTALL)
    assert '"status": "stopped"' in after("runs/first/stop")
    # A stop may land between two calls, when none is in flight.
    assert ("llm:ask" in after("press Ctrl-C")) == ("llm ask finished" in after("press Ctrl-C"))
    assert ('"llm:ask"' in after("runs/first/stop")) == ('"finished"' in after("runs/first/receipt"))
    assert "wrong topic" in after("stoppable show second")
    assert "budget is used up" in after("--hold --yes")
    assert "runs can be started again" in after("stoppable release")
    names = r"^ +(stop|reason|times|fate|clean-up|partial) "
    shown_in_page, printed = (re.findall(names, text, re.MULTILINE) for text in (PAGE, after("press Ctrl-C")))
    assert shown_in_page == printed, "the page shows the lines of a receipt that are printed"
    assert re.search(r"stopped .*an answer to stars, question 1\n", after("python stop.py"), re.DOTALL)
    assert "stopped running\ncompleted\n" in after("python tree.py")
    assert "stopped budget is used up\nrunning\n" in after("python owners.py")

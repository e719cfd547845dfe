"""Takes the pictures of the command line, in a real terminal: ``make screens`` writes them to docs/images."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from tests.cli.terminal import CTRL_C, Terminal
from tests.served import Server

from stoppable import Policy
from stoppable.client import Client
from stoppable.records import EventType

HERE = Path(__file__).parent
WIDTHS = (80, 140)
PATIENT = Policy(grace=60)
_RED, _GREEN, _YELLOW, _BLUE, _PINK, _CYAN = "ff6b6b", "7bd88f", "f5b042", "7aa2f7", "d787d7", "58d1eb"
# A frame that is drawn over the one before begins after one of these.
_MOVES = re.compile(r"\x1b\[H|\x1b\[\?1049h|\x1b\[\?25[hl]|\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
# What differs from one time to the next, and what stands for it; of the same width where columns follow.
_STEADY = [
    (r"/tmp/\w+/agents\.py", "/home/ann/agents.py"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-11-17 10:15:00"),
    (r"\b\d\d:\d\d:\d\d\b", "10:15:00"),
    (r"waiting up to (?:\d|10) s", "waiting up to 8 s"),
    (r"waiting up to \d\d s", "waiting up to 58 s"),
    (r"[\x00-\x09\x0b-\x1a]", ""),  # keys that were pressed
    (r"\+\d+\.\d{3}s", "+0.001s"),
    (r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", "⠋"),
]
_SPAN = re.compile(r"( *)(\x1b\[[\d;]*m)?(\d+m\d\ds|\d+\.\ds)\b")
_ID = re.compile(r"(?:(?<=\x1b\[2m)|(?<![0-9a-z]))[0-9a-f]{12}(?![0-9a-z])")


@contextlib.contextmanager
def server(folder):
    """Yield the address of a server with the agents of this folder."""
    command = [sys.executable, "-m", "stoppable", "serve", "agents", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
    served = Server(process)
    try:
        yield served.url()
    finally:
        process.kill()
        process.wait(30)
        served.close()


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("STOPPABLE")}


def prepare(client):
    """Make a run of each kind."""
    client.start("summary", {"topic": "tides"}, run_id="summary-1", owner="ann").wait(60)
    client.start("deploy", {"service": "chat"}, run_id="deploy-1", owner="bob").wait(60)
    started(client, "translate", {"chapters": 4}, run_id="translate-1", owner="ann")
    client.stop("translate-1", "immediate", "wrong language", wait=60)
    started(client, "research", {"topic": "tides"}, run_id="research-1", owner="bob", labels={"team": "sea"})
    started(client, "translate", {"chapters": 6}, run_id="translate-2", owner="ann", policy=PATIENT)
    client.stop("translate-2", reason="typo")


def started(client, agent, given, **options):
    run = client.start(agent, given, **options)
    told = 0
    for event in client.events(run.id):
        if event.type is EventType.PROGRESS:
            told += 1
            if event.data["name"] == "asked":
                return
        if event.type is EventType.ENTERED and told > given.get("chapters", 99) // 2:
            return


def of_command(folder, url, width, *command):
    """Return what a command leaves in a terminal."""
    with terminal(folder, url, width, *command) as shown:
        shown.end()
    return shown.raw.decode()


def watching(folder, url, width):
    with terminal(folder, url, width, "watch") as shown:
        shown.see("translate-2.*\n")
        shown.see("summary-1.*\n")
        shown.press(CTRL_C)
        shown.end()
    frames = [frame for frame in _MOVES.split(shown.raw.decode()) if "summary-1" in frame]
    return frames[0]


def stopping(folder, url, width):
    with terminal(folder, url, width, "run", "agents:translate", '{"chapters": 6}') as shown:
        shown.see("4/6")
        shown.see("in flight  llm:gpt")
        shown.press(CTRL_C)
        shown.see("waiting up to .* for its answer")
        shown.see("clean-up runs")
        shown.press(CTRL_C)
        shown.see("receipt|■ stopped")
        shown.end()
    frames = _MOVES.split(shown.raw.decode())
    during = next(frame for frame in frames if "waiting up to" in frame and "clean-up runs" in frame)
    return f"{during.rstrip()}\n"


def terminal(folder, url, width, *command):
    program = (
        "-c",
        f"import os, runpy, sys; os.chdir({str(folder)!r}); runpy.run_module('stoppable', run_name='__main__')",
    )
    return Terminal(*command, columns=width, rows=14, program=program, STOPPABLE_URL=url)


def steady(text):
    """Return a frame without what differs from one time to the next."""
    for pattern, fixed in _STEADY:
        text = re.sub(pattern, fixed, text)
    known = {}
    for found in _ID.findall(text):
        known.setdefault(found, f"{0x3F9A_0C41_77D2 + 0x1111_1111_1111 * len(known):012x}")
    for found, fixed in known.items():
        text = text.replace(found, fixed)
    return _SPAN.sub(_steady_span, text)


def _steady_span(found):
    blanks, colour, span = found.groups()
    return f"{'1.5s'.rjust(len(blanks + span))}" if not colour else f"{blanks}{colour}1.5s"


def picture(name, width, command, text):
    """Write a frame as an image."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    for line in Text.from_ansi(f"\x1b[1m$\x1b[0m {command}\n{text}".rstrip()).split("\n"):
        line.rstrip()
        console.print(line)
    console.print()  # the drawing cuts the feet of letters on the last line
    drawn = console.export_svg(title=f"{width} columns", theme=_theme(), unique_id=f"{name}-{width}")
    # The docs load nothing from elsewhere.
    drawn = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->", "", drawn, flags=re.DOTALL)
    folder = Path(os.environ.get("SCREENS", HERE.parents[2] / "docs/images"))
    lines = [line.rstrip() for line in drawn.split("\n")]
    (folder / f"cli-{name}-{width}.svg").write_text("\n".join(line for line in lines if line) + "\n")


def _theme():
    """Return colours of which each can be read on the dark background."""
    colours = [_rgb(one) for one in ("1a1a1a", _RED, _GREEN, _YELLOW, _BLUE, _PINK, _CYAN, "d9d9d9")]
    return TerminalTheme(_rgb("0c0c0c"), _rgb("d9d9d9"), colours, [_rgb("9a9a9a"), *colours[1:]])


def _rgb(colour):
    return tuple(bytes.fromhex(colour))


def main():
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    shutil.copy(HERE / "agents.py", folder)
    typed = "stoppable run agents:translate '{\"chapters\": 6}'   # and Ctrl-C"
    kinds = [  # those with a column of times first, while all of them are below ten seconds
        ("ls", "stoppable ls", lambda *where: of_command(*where, "ls")),
        ("watch", "stoppable watch", watching),
        ("show", "stoppable show deploy", lambda *where: of_command(*where, "show", "deploy")),
        ("run", typed, stopping),
    ]
    try:
        with server(folder) as url, Client(url) as client:
            prepare(client)
            for name, command, taken in kinds:
                for width in WIDTHS:
                    picture(name, width, command, steady(taken(folder, url, width)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

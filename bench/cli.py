"""What it costs to start a command: the CPU time of whole processes, beside Python itself and Python with typer.

`make bench-cli` calls it. Wall time says nothing on a machine that does something else, so it is not measured.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import facts
from stoppable import sync
from table import Row, Section, Target, against, as_markdown, as_text, summary

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results/cli.md"
TIMES = 15
BUDGET = Target(limit=250, absolute=True, strict=True)
METHOD = (
    "Written by `make bench-cli`. CPU time, user and system, of a whole process with compiled modules; the least of"
    f" {TIMES}. `ls` and `stop` ask a server on the same machine, which has twenty runs."
)


def cpu(environment, *arguments):
    """Return the least CPU time that a process took, in milliseconds."""
    measured = []
    for _ in range(TIMES + 1):  # the first one compiles
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        measured.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1000 * min(measured[1:])


def serve(folder):
    """Start a server with twenty runs that are over, and return it with its address and one of the runs."""
    store = f"sqlite:///{folder}/runs.db"
    with sync.Supervisor(store) as supervisor:
        handles = [supervisor.start(int) for _ in range(20)]
        for handle in handles:
            handle.outcome()
    command = [sys.executable, "-m", "stoppable", "serve", "builtins:int", "--port", "0", "--store", store]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if line.startswith("  at "):
            return server, line.split()[1], handles[0].id
    raise SystemExit("the server does not start")


def measure(environment, run_id):
    floor = cpu(environment, "-c", "pass")
    rows = [
        Row(name="python -c pass", value=floor, unit="ms", ratio=1.0),
        against(floor, "python -c 'import typer'", cpu(environment, "-c", "import typer"), unit="ms"),
        against(floor, "python -c 'import httpx'", cpu(environment, "-c", "import httpx"), unit="ms"),
        against(
            floor,
            "python -c 'from stoppable import run'",
            cpu(environment, "-c", "from stoppable import run"),
            unit="ms",
        ),
    ]
    for words in (("--help",), ("ls",), ("stop", run_id), ("show", run_id)):
        name = " ".join(["stoppable", *("RUN" if word == run_id else word for word in words)])
        target = None if "show" in words else BUDGET
        rows.append(against(floor, name, cpu(environment, "-m", "stoppable", *words), target=target, unit="ms"))
    return Section(title="CPU time of a command", rows=rows)


def main():
    described = facts(["stoppable", "typer", "rich"])
    with tempfile.TemporaryDirectory() as folder:
        server, url, run_id = serve(folder)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"STOPPABLE_URL": url, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        try:
            section = measure(environment, run_id)
        finally:
            server.terminate()
            server.stderr.close()
            server.wait(30)
    last_line = summary("cli", [section])
    RESULTS.write_text(as_markdown("The start of a command, measured", METHOD, described, [section], last_line))
    print(as_text(section), last_line, sep="\n\n")


if __name__ == "__main__":
    main()

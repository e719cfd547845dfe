"""What the common commands do not import: it would take longer than what they do."""

import json
import os
import subprocess
import sys

SCRIPT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
from stoppable.cli import main
main()
"""
HEAVY = {
    "apsw",
    "asyncio",
    "fastapi",
    "httpx",
    "importlib.metadata",
    "pydantic",
    "rich.live",
    "stoppable._engine",
    "stoppable.server",
    "stoppable.stores",
    "stoppable.supervisor",
    "uvicorn",
}


def imported(url, *arguments):
    """Return what a command printed, and the modules that it had imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, "STOPPABLE_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, set(json.loads(done.stderr.strip().splitlines()[-1]))


def test_the_help_imports_neither_the_library_nor_a_terminal(served):
    told, modules = imported(served, "--help")

    assert "Stop a run with everything it started" in told
    assert not modules & (HEAVY | {"rich", "stoppable.client", "stoppable.records"})


def test_a_list_and_a_stop_import_no_engine_and_no_http_client(served, client):
    run_id = client.start("waiting").id

    listed, for_ls = imported(served, "ls", "-n", "5")
    stopped, for_stop = imported(served, "stop", run_id, "--wait", "30")

    assert "waiting" in listed
    assert "stopped" in stopped
    assert not for_ls & HEAVY
    assert not for_stop & HEAVY


def test_the_client_needs_no_engine_and_no_supervisor():
    script = """
import sys
import stoppable.client
stoppable.client.AsyncClient
assert not {"stoppable._engine", "stoppable.stores", "stoppable.supervisor"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_importing_the_package_is_cheap_and_every_way_to_a_name_works():
    script = """
import sys
import stoppable
assert not {"asyncio", "stoppable._engine"} & set(sys.modules)
assert stoppable.errors.StoppableError is stoppable.StoppableError
from stoppable import Supervisor, sync
from stoppable import *
assert agent is stoppable.agent and run is stoppable.run
assert set(stoppable.__all__) <= set(dir(stoppable))
for ask in (lambda: stoppable.nothing, lambda: stoppable._nothing):
    try:
        ask()
    except AttributeError as error:
        assert "has no attribute" in str(error)
    else:
        raise AssertionError
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], timeout=120, check=True)

"""Datadog, OpenTelemetry and Sentry patch the same clients: both see what they should, whoever comes first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
@pytest.mark.parametrize("tracer", ["datadog", "opentelemetry", "sentry"])
def test_calls_are_traced_and_stopped_whoever_patched_the_client_first(tracer, order):
    command = [sys.executable, "-W", "ignore", "-m", "tests.model_clients.beside", tracer, order]
    folder = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stderr
    for name, result in json.loads(done.stdout.splitlines()[-1]).items():
        fates = (["closed"], ["finished"]) if name.endswith("stream") else (["finished"],)  # all of it may be there
        assert (result["status"], result["calls"]) == ("stopped", 1), (name, result)
        assert result["fates"] in fates, (name, result)
        assert result["traces"] >= 1, (name, result)

"""LangGraph's own server (`langgraph dev`)."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from ...waiting import wait_until

ROOT = Path(__file__).parents[3]
DEADLINE = 120


@contextlib.contextmanager
def dev_server(folder, python=sys.executable):
    """Serve a folder as `langgraph dev` does, and yield a client of the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(python).with_name("langgraph")), "dev", "--no-browser", "--no-reload"]
    offline = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env={**os.environ, **offline},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE) as http:
            wait_until(lambda: process.poll() is not None or _is_up(http), DEADLINE)
            assert process.poll() is None, (folder / "log").read_text()
            yield http
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait(5)


def _is_up(http):
    with contextlib.suppress(httpx.TransportError):
        return http.get("/ok", timeout=5).status_code == 200

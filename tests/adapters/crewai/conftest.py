"""Keeps CrewAI from sending anything anywhere but to the tests' own servers, and installs the adapter."""

import os
import tempfile
import threading
import warnings
from pathlib import Path

import httpx
import pytest

os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_TRACING_ENABLED": "false",  # the first run of a user would collect a trace, and print what it does
    "CREWAI_STORAGE_DIR": "stoppable-tests",
    "XDG_DATA_HOME": tempfile.mkdtemp(prefix="crewai-"),
}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of its imports
    import lancedb  # noqa: F401 - its thread lives as long as the process, and flows import it
    from crewai.events.event_bus import crewai_event_bus
    from crewai.utilities.paths import db_storage_path

    from stoppable.adapters.crewai import install

db_storage_path()  # it makes the folder when it is first asked for, which a test would see as an effect
OURS = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(OURS):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture(autouse=True)
def installed():
    """Install the adapter, as a program does once."""
    install()


@pytest.fixture(autouse=True)
def closed_clients(monkeypatch):
    """Close the clients of models: CrewAI leaves that to the collector, and any later test would get its warning."""
    clients, init = [], httpx.Client.__init__

    def note(self, *args, **kwargs):
        init(self, *args, **kwargs)
        clients.append(self)

    monkeypatch.setattr(httpx.Client, "__init__", note)
    yield
    for client in clients:
        client.close()


@pytest.fixture(scope="session", autouse=True)
def event_bus():
    """Start the threads of CrewAI's event bus, which live as long as the process."""
    crewai_event_bus._ensure_executor_initialized()
    threads = crewai_event_bus._sync_executor._max_workers
    everybody = threading.Barrier(threads)
    for done in [crewai_event_bus._sync_executor.submit(everybody.wait, 60) for _ in range(threads)]:
        done.result()

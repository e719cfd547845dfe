"""Warnings of langgraph and of what it stands on are not ours to mend; all others stay errors."""

import socket
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOREIGN = [
    "ignore::DeprecationWarning:langgraph",
    "ignore::PendingDeprecationWarning:langgraph",
    "ignore::DeprecationWarning:langchain",
    "ignore:.*allowed_objects:PendingDeprecationWarning",
    "ignore:.*allowed_objects:DeprecationWarning",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Refuse every connection but to this machine: a framework that calls home fails the test."""
    real = socket.socket.connect

    def connect(self, address):
        if self.family != socket.AF_UNIX and address[0] not in {"127.0.0.1", "::1", "localhost"}:
            raise AssertionError(f"something connects to {address!r}: these tests are offline")
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)

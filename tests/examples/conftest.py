import contextlib

import pytest

from .user_code import Running


@contextlib.contextmanager
def _running(folder, isolation, grace):
    running = Running(folder, "--grace", grace, *(["--in-process"] if isolation == "thread" else []))
    running.isolation = isolation
    yield running
    running.close()
    assert running.process.returncode in {0, -15}  # uvicorn passes the signal on when it has shut down


@pytest.fixture(scope="session", params=["process", "thread"])
def app(request, tmp_path_factory):
    """The app, with agents in agent processes and on its own threads; a stop waits a second for calls in flight."""
    with _running(tmp_path_factory.mktemp(request.param), request.param, "1") as running:
        yield running


@pytest.fixture(scope="module", params=["process", "thread"])
def patient_app(request, tmp_path_factory):
    """The same, but a stop waits for calls in flight for longer than any test."""
    with _running(tmp_path_factory.mktemp(request.param), request.param, "600") as running:
        yield running


@pytest.fixture
def folder(tmp_path):
    """Where the code of a test leaves traces; what waits for the file ``go`` there is let go at the end."""
    yield tmp_path
    (tmp_path / "go").touch()

import pytest

from .user_code import Running


@pytest.fixture(scope="session", params=["process", "thread"])
def app(request, tmp_path_factory):
    """The app, with agents in agent processes and on its own threads; a stop waits a second for calls in flight."""
    options = ["--grace", "1"] + (["--in-process"] if request.param == "thread" else [])
    running = Running(tmp_path_factory.mktemp(request.param), *options)
    running.isolation = request.param
    yield running
    running.close()
    assert running.process.returncode in {0, -15}  # uvicorn passes the signal on when it has shut down


@pytest.fixture
def folder(tmp_path):
    """Where the code of a test leaves traces; what waits for the file ``go`` there is let go at the end."""
    yield tmp_path
    (tmp_path / "go").touch()

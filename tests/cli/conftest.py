"""Commands, in this process, against a real server process."""

import json

import pytest
from typer.testing import CliRunner

from stoppable._core.values import new_id
from stoppable.cli import screen
from stoppable.cli.command_line import command_line
from stoppable.client import Client


class Command:
    """Calls commands as a shell would, without a terminal."""

    def __init__(self, url):
        self._environment = {"STOPPABLE_URL": url, "STOPPABLE_STORE": "", "COLUMNS": "160"}

    def __call__(self, *arguments, code=0, keys=None, **environment):
        screen.out.cache_clear()
        screen.err.cache_clear()
        done = CliRunner().invoke(command_line(), list(arguments), input=keys, env={**self._environment, **environment})
        assert done.exit_code == code, (done.exit_code, done.output, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    def json(self, *arguments, code=0):
        return json.loads(self(*arguments, "--json", code=code).stdout)


@pytest.fixture
def stoppable(served):
    yield Command(served)
    screen.out.cache_clear()
    screen.err.cache_clear()


@pytest.fixture
def client(served):
    with Client(served) as client:
        yield client


@pytest.fixture
def unique():
    """Return a word that no other test uses: they share the server."""
    return f"unique-{new_id()[:8]}"

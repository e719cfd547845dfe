"""The commands without HTTP: `--store` opens the file itself, for when no server answers."""

import pytest

from stoppable.cli.exits import Exit
from stoppable.client import Client
from stoppable.records import EventType

from ..served import server_process
from .conftest import Command

NOBODY = "http://127.0.0.1:9"


def running(client, agent, **options):
    record = client.start(agent, **options)
    for event in client.events(record.id):
        if event.type is EventType.STATUS and event.data["status"] == "running":
            return record.id
    raise AssertionError("it is over")


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path}/runs.db"


def test_every_command_about_runs_works_on_the_store_while_no_server_can_be_asked(store):
    stoppable = Command(NOBODY)
    with server_process("--store", store) as url, Client(url) as client:
        first, second = running(client, "waiting", owner="ann"), running(client, "parent", owner="bob")
        assert {one["id"] for one in stoppable.json("ls", "--store", store)} >= {first, second}
        told = stoppable("stop", first, "--store", store, "--reason", "no answer", "--wait", "30").stdout
        assert "stopped" in told
        assert client.get(first).status == "stopped"
        assert stoppable.json("receipt", first, "--store", store)["reason"]["message"] == "no answer"
        assert stoppable.json("tree", second, "--store", store)[0]["name"] == "parent"
        stopped = stoppable.json("stop", "--owner", "bob", "--hold", "--yes", "--wait", "30", "--store", store)
        assert [one["status"] for one in stopped["receipts"] if one["runId"] == second] == ["stopped"]
        assert [one["id"] for one in stoppable.json("holds", "--store", store)] == [stopped["hold"]]
        stoppable("release", stopped["hold"], "--store", store)
        assert stoppable.json("holds", "--store", store) == []
        actions = [(one["action"], one["actor"].partition(":")[0]) for one in stoppable.json("audit", "--store", store)]
        assert actions == [("release", "local"), ("stop", "local"), ("stop", "local")]
        watched = stoppable("watch", first, "--store", store, "--json", code=Exit.STOPPED).stdout.splitlines()
        assert '"type": "done"' in watched[-1]


@pytest.mark.parametrize(
    ("store", "code", "says"),
    [
        ("sqlite:///{tmp}/typo.db", Exit.NOT_FOUND, "no store at"),
        ("memory://", Exit.USAGE, "visible in its own process"),
        ("sqlite:///{tmp}", Exit.UNREACHABLE, "it is a directory"),
    ],
)
def test_a_store_that_cannot_be_meant_is_refused_and_not_made(store, code, says, tmp_path):
    done = Command(NOBODY)("ls", "--store", store.format(tmp=tmp_path), code=code)
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []

"""Nothing that a run starts can read the credentials of the store; where else its URL may come from."""

import os
import subprocess
import sys

import pytest

from stoppable import _secrets
from stoppable.client import Client
from stoppable.errors import InvalidArgument
from stoppable.stores.postgres import PostgresStore
from stoppable.stores.urls import store_of, url_in_environment

from ..served import HERE, server_process
from .test_api_key import has_proc

PASSWORD = "pass/word of the store"


@pytest.fixture(autouse=True)
def _no_secrets(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("STOPPABLE_STORE", "PGPASS", "CREDENTIALS")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(_secrets, "_passwords", set())


@has_proc
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_no_command_of_an_agent_inherits_the_url_of_the_store(isolation, tmp_path):
    store = f"sqlite:///{tmp_path}/hidden.db"
    with server_process(STOPPABLE_STORE=store, DATABASE_URL="of-the-agent") as url, Client(url) as client:
        run = client.start("environments", isolation=isolation)
        for _ in client.events(run.id):
            pass
        seen = client.get(run.id).outcome.result
    assert (tmp_path / "hidden.db").exists(), "it was used"
    assert set(seen) == {"plain", "run_process", "above", "server"}
    assert not [way for way, text in seen.items() if "hidden.db" in text]
    for way in ("plain", "run_process"):
        assert "DATABASE_URL=of-the-agent" in seen[way], "what is not the credential of the store stays"


@pytest.mark.parametrize("way", ["file", "credential"])
def test_the_url_of_the_store_is_in_a_file(way, tmp_path):
    (tmp_path / "stoppable-store").write_text(f"sqlite:///{tmp_path}/runs.db\n")
    given = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    if way == "file":
        given = {"STOPPABLE_STORE_FILE": str(tmp_path / "stoppable-store")}
    with server_process(**given) as url, Client(url) as client:
        run_id = client.start("echo", "hello").id
    command = [sys.executable, "-m", "stoppable", "show", run_id, "--store", f"sqlite:///{tmp_path}/runs.db"]
    assert "hello" in subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout


def test_a_file_without_a_url_is_refused_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("STOPPABLE_STORE_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match=f"the URL of the store cannot be read: {tmp_path}/none"):
        url_in_environment()


@pytest.mark.parametrize(
    ("url", "variables", "leaking"),
    [
        ("sqlite:///runs.db", {"PGPASSWORD": "its own", "STOPPABLE_STORE_FILE": "x"}, {"STOPPABLE_STORE_FILE"}),
        ("postgresql://u@h/d", {"PGPASSWORD": PASSWORD, "PGHOST": "h"}, {"PGPASSWORD"}),
        (
            "postgresql://u:pass%2Fword%20of%20the%20store@h/d",
            {
                "DATABASE_URL": "postgresql+psycopg://u:pass%2Fword%20of%20the%20store@h/d",
                "OTHER_URL": "postgresql://u:another@h/d",
                "DB_PASSWORD": PASSWORD,
                "DSN": f"host=h password={PASSWORD}",
                "TITLE": PASSWORD,
            },
            {"DATABASE_URL", "DB_PASSWORD", "DSN"},
        ),
    ],
)
def test_no_process_of_a_run_inherits_a_variable_with_the_password_of_the_store(url, variables, leaking, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store_of(url)
    inherited = _secrets.inheritable()
    assert {name for name in variables if name not in inherited} == leaking


def test_a_postgres_store_keeps_the_password_that_is_removed_from_the_environment(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGPASSFILE", "/etc/passwords")
    url = "postgresql://u@h/d"
    before = PostgresStore(url)
    with _secrets.hide(url):
        assert not {"PGPASSWORD", "PGPASSFILE"} & set(os.environ)
        after = PostgresStore(url)
    assert os.environ["PGPASSWORD"] == PASSWORD
    assert before._secrets == after._secrets == {"password": PASSWORD, "passfile": "/etc/passwords"}
    assert PostgresStore("postgresql://u:mine@h/d")._secrets == {"passfile": "/etc/passwords"}
    assert PASSWORD not in repr(after)

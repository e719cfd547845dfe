"""Nothing that a run starts can read the API key of its server; where else a key may come from."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoppable.client import Client, NotAllowed
from stoppable.errors import InvalidArgument
from stoppable.server import Service

from ..served import server_process
from .serving import served

KEY = "the-key-of-this-server"

has_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the system has no /proc")


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    for name in ("STOPPABLE_API_KEY", "STOPPABLE_API_KEY_FILE", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@has_proc
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_no_command_of_an_agent_inherits_the_key_or_finds_it_in_the_environment_of_the_server(isolation):
    with server_process("--store", "memory://", STOPPABLE_API_KEY=KEY) as url, Client(url, api_key=KEY) as client:
        run = client.start("environments", isolation=isolation)
        for _ in client.events(run.id):
            pass
        record = client.get(run.id)
        assert record.outcome.error is None, record.outcome.error
        seen = record.outcome.result
    assert set(seen) == {"plain", "run_process", "above", "server"}
    assert all("PATH=" in text for text in seen.values()), "there is an environment to look into"
    assert not [way for way, text in seen.items() if KEY in text]


def test_a_key_in_a_file_is_the_key_of_the_server_and_of_the_client(tmp_path, monkeypatch):
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    with server_process("--store", "memory://", STOPPABLE_API_KEY_FILE=str(file)) as url:
        with Client(url) as nobody, pytest.raises(NotAllowed):
            nobody.list()
        monkeypatch.setenv("STOPPABLE_API_KEY_FILE", str(file))
        with Client(url) as client:
            assert client.list().runs == ()


def test_a_systemd_credential_is_the_key(tmp_path):
    (tmp_path / "stoppable-api-key").write_text(KEY)
    with server_process("--store", "memory://", CREDENTIALS_DIRECTORY=str(tmp_path)) as url:
        with Client(url) as nobody, pytest.raises(NotAllowed):
            nobody.list()
        with Client(url, api_key=KEY) as client:
            assert client.list().runs == ()


def test_while_a_server_serves_its_process_has_no_key_in_the_environment_but_finds_it(monkeypatch):
    monkeypatch.setenv("STOPPABLE_API_KEY", KEY)
    with served([]) as service:
        assert "STOPPABLE_API_KEY" not in os.environ
        with Client(service.url) as client:
            assert client.list().runs == ()
        with served([]) as second, pytest.raises(NotAllowed), Client(second.url, api_key="another-key") as client:
            client.list()
        assert "STOPPABLE_API_KEY" not in os.environ
    assert os.environ["STOPPABLE_API_KEY"] == KEY


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_key_file_without_a_key_is_refused_and_named(text, tmp_path, monkeypatch):
    file = tmp_path / "key"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("STOPPABLE_API_KEY_FILE", str(file))
    with pytest.raises(InvalidArgument, match=str(file)):
        Service({})


@has_proc
def test_the_key_is_gone_from_what_the_system_shows_of_a_process():
    code = (
        "import os, stoppable._secrets as keys\n"
        "with keys.hide() as key:\n"
        "    assert key == os.environ['WANTED']\n"
        "    print(open('/proc/self/environ').read())"
    )
    environment = {"STOPPABLE_API_KEY": KEY, "WANTED": KEY, "PATH": os.defpath}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert f"STOPPABLE_API_KEY={KEY}" not in done.stdout

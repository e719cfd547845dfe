"""A real Postgres, two replicas on it, and a certificate, for the tests of what deploy/ has."""

import subprocess
import uuid

import pytest
from tests.fleet.postgres_server import PostgresServer

from .files import SECONDS, program
from .running import Proxy, two_replicas


@pytest.fixture(scope="session")
def database():
    """Start a Postgres, which ends with the tests."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def url(database, tmp_path):
    """The URL of a store of its own for each test."""
    return f"{database.url}?schema=test_{uuid.uuid4().hex}&locks={tmp_path}/locks"


@pytest.fixture
def replicas(url, tmp_path):
    with two_replicas(url, tmp_path) as pair:
        yield pair


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A folder with a certificate of this machine for itself."""
    folder = tmp_path_factory.mktemp("tls")
    made = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", folder / "key.pem", "-out", folder / "cert.pem")
    command = [program("openssl"), "req", *made, *names, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return folder


KINDS = ("nginx", "caddy")


@pytest.fixture(params=KINDS)
def proxy(request, replicas, certificate, tmp_path):
    """Each proxy, in front of replicas that a test may end."""
    program(request.param)
    with Proxy(request.param, replicas, certificate, tmp_path) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def lasting_replicas(database, tmp_path_factory):
    """Replicas that tests share, since they take long to start."""
    folder = tmp_path_factory.mktemp("lasting")
    with two_replicas(f"{database.url}?schema=lasting&locks={folder}/locks", folder) as pair:
        yield pair


@pytest.fixture(scope="session", params=KINDS)
def lasting_proxy(request, lasting_replicas, certificate, tmp_path_factory):
    """Each proxy, in front of replicas that no test ends."""
    program(request.param)
    with Proxy(request.param, lasting_replicas, certificate, tmp_path_factory.mktemp(request.param)) as proxy:
        yield proxy

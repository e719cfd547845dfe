"""`stoppable serve` as a process: what it forgets."""

import pytest

from stoppable import sync
from stoppable.client import Client
from stoppable.errors import RunNotFound

from ..served import server_process
from ..waiting import wait_until

pytestmark = pytest.mark.timeout(120)


def is_forgotten(client, run_id):
    try:
        client.get(run_id)
    except RunNotFound:
        return True
    return False


def test_serve_forgets_what_ended_longer_ago_than_keep_days_with_the_first_heartbeat_of_its_ttl(tmp_path):
    store = f"sqlite:///{tmp_path}/runs.db"
    with sync.Supervisor(store) as supervisor:
        old = supervisor.start(int)
        old.result()
    with server_process("--store", store, "--keep-days", "1e-6", "--ttl", "3") as url, Client(url) as client:
        wait_until(lambda: is_forgotten(client, old.id), within=8)  # with a ttl of 30 the first comes after 10 s

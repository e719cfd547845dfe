"""A stop that is sent in the moment in which connections are lost arrives all the same (G14).

Everything that only publishes a stop loses it here: nobody listens while the connections are made again. The lease is
long, so that no heartbeat brings it.
"""

import pytest
from tests.proxy import Proxy
from tests.waiting import wait_until

import stoppable
from stoppable import sync

TIMES = 100
TTL = 3600.0
DEADLINE = 30


async def waiting():
    await stoppable.sleep(3600)


@pytest.mark.timeout(600)  # a hundred times on a busy machine; every part has a deadline of its own
def test_a_stop_at_the_moment_of_a_reset_arrives_a_hundred_times_of_a_hundred(server, url):
    with Proxy(server.port) as proxy, sync.Supervisor(url, ttl=TTL) as other:
        disturbed = url.replace(f":{server.port}/", f":{proxy.port}/")
        with sync.Supervisor(disturbed, ttl=TTL) as worker:
            runs = [stopped(proxy, worker, other) for _ in range(TIMES)]
    with sync.Supervisor(url) as last:  # writes down the ends that a reset has kept from being written
        ends = [wait_until(lambda run=run: (end := last.get(run)).over and end, DEADLINE) for run in runs]
    assert [end.status for end in ends] == ["stopped"] * TIMES


def stopped(proxy, worker, other):
    """Stop a run whose process has just lost its connections, and return its id once it has ended there."""
    handle = worker.start(waiting)
    wait_until(lambda: other.get(handle.id).status == "running", DEADLINE)
    proxy.reset()
    assert other.stop(handle.id).answer == "accepted"
    wait_until(lambda: handle.status.terminal, DEADLINE)
    return handle.id

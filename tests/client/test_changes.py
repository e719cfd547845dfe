"""A client is told what changes in any run, over connections that break."""

import itertools

from .cutting_proxy import CuttingProxy

TRIES = 10_000  # messages: only a defect takes so many


def until(changes, is_so):
    for change in itertools.islice(changes, TRIES):
        if is_so(change):
            return change
    raise AssertionError("it was not told")


def test_a_run_is_told_of_until_it_is_over(client, unique):
    changes = client.changes()
    assert next(changes).is_reset, "first of all: list what is there"
    assert until(changes, lambda change: change.is_all)
    client.start("waiting", run_id=unique, owner="ann")
    started = until(changes, lambda change: change.run is not None and change.run.id == unique)
    assert (started.run.owner, started.run.over) == ("ann", False)
    client.stop(unique, reason="enough")
    ended = until(changes, lambda change: change.run is not None and change.run.id == unique and change.run.over)
    assert (ended.run.status, ended.run.reason.message) == ("stopped", "enough")
    changes.close()


def test_what_is_in_flight_is_told(client, unique):
    client.start("long_call", run_id=unique)
    changes = client.changes()
    told = until(
        changes,
        lambda change: (
            change.in_flight.get(unique)
            or (change.run is not None and change.run.id == unique and change.run.in_flight)
        ),
    )
    assert (told.in_flight.get(unique) or told.run.in_flight) == ("llm:long",)
    client.stop(unique, "immediate", wait=30)
    changes.close()


def test_a_connection_that_breaks_is_taken_up_again_where_it_was(connect, client, server, unique):
    with CuttingProxy(server, 700, 2_000, 3_000) as proxy:
        changes = connect(proxy.url).changes()
        assert next(changes).is_reset
        resets = 0
        for number in range(5):
            run_id = f"{unique}-{number}"
            client.start("echo", run_id=run_id)
            while not ((change := next(changes)).run is not None and change.run.id == run_id and change.run.over):
                resets += change.is_reset
        assert proxy.connections > 1
        assert resets == 0, "it knows where it was"
        changes.close()

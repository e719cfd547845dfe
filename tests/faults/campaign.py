"""Kills, freezes and cuts off replicas under load, and checks that no stop that was answered 202 is lost (G14).

    python tests/faults/campaign.py --store sqlite --stops 1000 --seed 7
    python tests/faults/campaign.py --store postgres --stops 1000

Every fault gets its share of the stops. The seed is printed and replays the same choices; how the processes interleave
is the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.replicas import Replicas
from tests.faults.workload import Stop, Workload, check

from stoppable.stores.urls import store_of

TTL = 6.0
REPLICAS = 3
LONGEST = 300.0  # seconds for one fault that is made a few times
PER_TIME = 20.0  # and for each time more


@dataclass
class Fleet:
    """Replicas on one store, and the ways to reach it that can be disturbed."""

    replicas: Replicas
    store: Any
    """Looks at the runs, undisturbed; takes no part."""
    choices: random.Random
    is_file: bool = True
    server: Any = None
    """The database server, if there is one."""
    proxies: list[Any] = field(default_factory=list)
    """One in front of the database for each replica."""

    def one(self, role: str, stop: Stop) -> Any:
        """Return the replica that has a role in a stop that was just answered."""
        if role == "worker":
            return stop.worker
        if role == "API replica":
            return stop.asked
        return next((one for one in self.replicas if one not in (stop.worker, stop.asked)), stop.asked)


Fault = Callable[[Fleet, Workload], None]


# What is done to a replica


def _killed(role: str) -> Fault:
    def fault(fleet: Fleet, workload: Workload) -> None:
        victim = fleet.one(role, workload.next_stop())
        victim.kill()
        victim.begin()
        victim.ready()

    return fault


def _frozen(role: str) -> Fault:
    def fault(fleet: Fleet, workload: Workload) -> None:
        victim = fleet.one(role, workload.next_stop())
        victim.freeze(fleet.store if fleet.is_file else None)
        time.sleep(fleet.choices.choice((0.5, TTL * 1.5)))  # a pause, and one that outlasts the lease
        victim.thaw()
        victim.ready()

    return fault


def _terminated(fleet: Fleet, workload: Workload) -> None:
    """SIGTERM while the replica executes a stop."""
    victim = workload.next_stop().worker
    _restart(victim)


def _rolled(fleet: Fleet, workload: Workload) -> None:
    """A rolling restart."""
    for replica in fleet.replicas:
        _restart(replica)


def _restart(replica: Any) -> None:
    replica.signal(signal.SIGTERM)
    code, said = replica.wait()
    assert code == 0, said
    replica.begin()
    replica.ready()


# What is done to the database, and to the way there


_DISCONNECT = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"""


def _disconnected(fleet: Fleet, workload: Workload) -> None:
    """The server ends the connections of everybody."""
    import psycopg

    workload.next_stop()
    with psycopg.connect(fleet.server.url, autocommit=True) as connection:
        connection.execute(_DISCONNECT)
    time.sleep(fleet.choices.uniform(0, 0.5))


def _crashed(fleet: Fleet, workload: Workload) -> None:
    """kill -9 of the database, and a restart."""
    workload.next_stop()
    fleet.server.kill()
    time.sleep(fleet.choices.uniform(0, 1))
    fleet.server.start()
    for replica in fleet.replicas:
        replica.ready()


def _through(what: str, least: float, most: float) -> Fault:
    def fault(fleet: Fleet, workload: Workload) -> None:
        stop = workload.next_stop()
        proxy = fleet.proxies[fleet.replicas.index(stop.worker)]
        if what == "delay":
            proxy.delay(0.1)
        else:
            getattr(proxy, what)()
        time.sleep(fleet.choices.uniform(least, most))
        proxy.heal()
        stop.worker.ready()

    return fault


REPLICA_FAULTS: dict[str, Fault] = {
    **{f"SIGKILL of the {role}": _killed(role) for role in ("worker", "API replica", "reaper")},
    **{f"SIGSTOP of the {role}": _frozen(role) for role in ("worker", "API replica", "reaper")},
    "SIGTERM during a stop": _terminated,
    "rolling restart": _rolled,
}
DATABASE_FAULTS: dict[str, Fault] = {
    "connections ended by the database": _disconnected,
    "kill -9 of the database": _crashed,
    "delays": _through("delay", 0.5, 1.0),
    "resets": _through("reset", 0, 0.3),
    "half-closes": _through("half_close", 0, 1.0),
    "black hole": _through("black_hole", TTL, TTL * 2),
}


# The campaign


def faults_of(fleet: Fleet) -> dict[str, Fault]:
    """Return what can be done to a fleet."""
    return REPLICA_FAULTS if fleet.is_file else REPLICA_FAULTS | DATABASE_FAULTS


def run(fleet: Fleet, names: list[str], stops: int, folder: Path, seed: int, least: int = 3) -> dict[str, Counter[str]]:
    """Make every fault so often, and until so many stops were answered meanwhile; return their fates."""
    fates: dict[str, Counter[str]] = {}
    known = faults_of(fleet)
    for number, name in enumerate(names):
        place = folder / str(number)
        place.mkdir()
        began, times, longest = time.monotonic(), 0, LONGEST + PER_TIME * least
        with Workload(fleet.replicas, place, seed + number) as workload:
            while (workload.accepted < stops or times < least) and time.monotonic() - began < longest:
                known[name](fleet, workload)
                times += 1
        assert times >= least, f"only {times} times in {longest:.0f} s"
        fates[name] = check(fleet.store, workload.answered)
        seconds = time.monotonic() - began
        print(
            f"{name}: {times} times, {workload.accepted} stops answered 202, 0 lost, {dict(fates[name])},"
            f" {seconds:.0f} s, requests {dict(workload.counts)}",
            flush=True,
        )
    return fates


@contextlib.contextmanager
def on_a_file(folder: Path, seed: int) -> Iterator[Fleet]:
    """Share a SQLite file."""
    url = f"sqlite:///{folder / 'runs.db'}"
    with Replicas([url] * REPLICAS, TTL) as replicas, _looking(url) as store:
        yield Fleet(replicas, store, random.Random(seed))


@contextlib.contextmanager
def on_postgres(server: Any, folder: Path, seed: int, schema: str = "stoppable") -> Iterator[Fleet]:
    """Share a database, each replica by way of a proxy of its own."""
    from tests.proxy import Proxy

    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(server.port)) for _ in range(REPLICAS)]
        more = f"?schema={schema}&locks={folder / 'locks'}"
        urls = [server.url.replace(f":{server.port}/", f":{proxy.port}/") + more for proxy in proxies]
        replicas = stack.enter_context(Replicas(urls, TTL))
        store = stack.enter_context(_looking(server.url + more))
        yield Fleet(replicas, store, random.Random(seed), is_file=False, server=server, proxies=proxies)


@contextlib.contextmanager
def _looking(url: str) -> Iterator[Any]:
    store = store_of(url)
    store.open()
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def _fleet(kind: str, folder: Path, seed: int) -> Iterator[Fleet]:
    if kind == "sqlite":
        with on_a_file(folder, seed) as fleet:
            yield fleet
        return
    from tests.fleet.postgres_server import PostgresServer

    server = PostgresServer()
    try:
        with on_postgres(server, folder, seed) as fleet:
            yield fleet
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--stops", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--times", type=int, default=3, help="how often each fault is made at least")
    parser.add_argument("--fault", action="append", help="only those whose name begins so; several times")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"{options.store}, seed {seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="stoppable-faults-") as name,
        _fleet(options.store, Path(name), seed) as fleet,
    ):
        names = [name for name in faults_of(fleet) if name.startswith(tuple(options.fault or [""]))]
        try:
            fates = run(fleet, names, -(-options.stops // len(names)), Path(name), seed, options.times)
        except BaseException:
            for replica in fleet.replicas:
                print(f"{replica.name} said:\n{replica.last_words()}", flush=True)
            print(f"failed; replay with --store {options.store} --seed {seed}", flush=True)
            raise
    total = sum(fates.values(), Counter())
    assert sum(total.values()) >= options.stops, f"only {sum(total.values())} stops"
    print(f"{sum(total.values())} stops answered 202, 0 lost: {dict(total)}")


if __name__ == "__main__":
    main()

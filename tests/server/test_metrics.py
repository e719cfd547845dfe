"""What a scrape of a real server says is what happened: as many runs and stops as the audit has, and nobody's text."""

import asyncio
import json
import re
from collections import Counter

import pytest
from fastapi import Header
from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.parser import text_string_to_metric_families

import stoppable
from stoppable import sync
from stoppable.errors import StoreError
from stoppable.metrics import SupervisorCollector, registry
from stoppable.server import Principal, ServerLimits
from stoppable.server.prometheus import metrics_api
from stoppable.stores.base import StoreFuture
from stoppable.stores.memory import MemoryStore

from ..waiting import until
from .serving import DEADLINE, RawStream, client_of, ended, over, served, started

HOSTILE = 'a"b\\c\nd}\u2028é\ud800'


async def quick():
    """Do nothing."""


async def fails():
    raise ValueError("no")


async def waiter():
    """Wait for a stop in a boundary."""
    async with stoppable.boundary("llm", "ask"):
        await stoppable.sleep(600)


async def tidy():
    """Clean up with a boundary."""
    try:
        await stoppable.sleep(600)
    finally:
        with stoppable.shielded(30):
            async with stoppable.boundary("tool", "save"):
                pass


async def parent():
    await (await stoppable.spawn(waiter, name="whatever its user has typed")).result()


async def talker(count):
    for n in range(count):
        stoppable.emit("step", n=n)
        await stoppable.sleep(0)


PATIENCE = 100  # only a defect takes so long, also where everything else is busy
AGENTS = {one.__name__: one for one in (quick, fails, waiter, tidy, parent, talker)}


class Scrape(dict):
    """The samples of a scrape, by name and label values."""

    def __init__(self, text):
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]
        for sample in self.samples:
            self[sample.name, *sample.labels.values()] = sample.value

    def by(self, name, *labels):
        """Return the values of a metric by some of its labels, without zeros."""
        found = Counter()
        for sample in self.samples:
            if sample.name == f"stoppable_{name}":
                found[tuple(sample.labels[label] for label in labels)] += sample.value
        return {key if len(key) > 1 else key[0]: value for key, value in found.items() if value}

    def one(self, name):
        (value,) = (sample.value for sample in self.samples if sample.name == f"stoppable_{name}")
        return value


async def scraped(client, **options):
    response = await client.get("/metrics", **options)
    assert response.status_code == 200, response.text
    return Scrape(response.text)


async def scraped_once(client, is_counted):
    """Scrape until something is counted: what the store has is counted a moment later, when it has answered."""
    async with asyncio.timeout(PATIENCE):
        while not is_counted(scrape := await scraped(client)):
            await asyncio.sleep(0.005)
    return scrape


def has_ends(count):
    """Return whether a scrape has the ends of so many runs, and nothing is on its way to the store any more."""

    def is_counted(scrape):
        ends = sum(scrape.by("runs_ended_total", "status").values())
        written = scrape.by("store_seconds_count", "operation").get("finish", 0)
        return min(ends, written) >= count and not scrape.by("runs", "status") and not scrape.one("events_waiting")

    return is_counted


def measured(agents=AGENTS, **options):
    return served(agents, routers=[metrics_api], **options)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return None if request.param == "memory" else f"sqlite:///{tmp_path}/runs.db"


async def test_the_numbers_are_what_the_audit_and_the_list_of_runs_say(store):
    with measured(store=store) as service:
        async with client_of(service) as client:
            for agent, count in (("quick", 5), ("fails", 2)):
                for _ in range(count):
                    await over(client, await started(client, agent))
            runs = [await started(client, agent) for agent in ("waiter", "waiter", "tidy", "parent")]
            await until(lambda: [one.status for one in service.supervisor.runs].count("running") == 5, PATIENCE)
            for run, mode in zip(runs, ("graceful", "immediate", "graceful", "kill"), strict=True):
                await client.post(f"/runs/{run}/stop?wait=30", json={"mode": mode})
                await client.post(f"/runs/{run}/stop", json={"mode": mode})  # which changes nothing
            left = [await started(client, "waiter") for _ in range(3)]
            selector = {"selector": {"agent": "waiter"}}
            await client.post("/stops?wait=30", json={**selector, "dryRun": True})
            await client.post("/stops?wait=30", json=selector)
            assert (await client.post("/runs/unknown/stop", json={})).status_code == 404
            for run in [*runs, *left]:
                await over(client, run)

            page = (await client.get("/runs", params={"limit": 1000})).json()["runs"]
            scrape = await scraped_once(client, has_ends(len(page)))
            names = Counter((run["name"] if run["name"] in AGENTS else "other", run["status"]) for run in page)
            assert scrape.by("runs_ended_total", "agent", "status") == names
            assert scrape.by("runs_started_total", "agent") == Counter(name for name, _ in names.elements())
            assert scrape.by("runs", "status") == {}
            stopped = [run for run in page if run["mode"] is not None]
            assert len(stopped) == 8, "with the child"
            assert scrape.by("stopped_runs_total", "mode", "rung", "status") == Counter(
                (run["mode"], run["rung"] or "none", run["status"]) for run in stopped
            )
            assert scrape.one("stop_ended_seconds_count") == 8
            assert scrape.one("stop_ended_seconds_sum") == pytest.approx(
                sum(run["endedAt"] - run["stopRequestedAt"] for run in stopped)
            )
            for phase in ("acknowledged", "delivered"):
                times = [run[f"{phase}At"] - run["stopRequestedAt"] for run in stopped if run[f"{phase}At"]]
                assert scrape.one(f"stop_{phase}_seconds_count") == len(times)
                assert scrape.one(f"stop_{phase}_seconds_sum") == pytest.approx(sum(times), abs=0.001)
            entries = (await client.get("/audit", params={"limit": 1000})).json()["entries"]
            assert scrape.by("stop_requests_total", "mode") == Counter(
                entry["target"]["mode"] for entry in entries if entry["action"] == "stop"
            )
            assert scrape.by("stop_requests_total", "result") == {"accepted": 5, "unchanged": 4}
            assert scrape.one("boundaries_entered_after_stop_total") == 1
            assert scrape.one("events_waiting") == scrape.one("events_dropped_total") == 0
            assert scrape.one("late_ends_total") == scrape.one("leases_lost_total") == 0
            assert scrape.by("store_errors_total", "operation") == {}
            assert scrape.by("store_seconds_count", "operation")["finish"] == len(page)
            assert scrape.one("build_info") == 1


async def test_the_first_kill_is_an_increase_that_an_alert_sees():
    with measured() as service:
        async with client_of(service) as client:
            before = await scraped(client)
            assert before["stoppable_stopped_runs_total", "graceful", "kill", "stopped"] == 0


async def test_what_is_live_is_read_when_it_is_asked_for():
    with measured() as service:
        async with client_of(service) as client:
            run = await started(client, "parent")
            await until(lambda: [one.status for one in service.supervisor.runs] == ["running"] * 2)
            stream = await RawStream.open(service, run)
            scrape = await scraped(client)
            await stream.close()
            assert scrape.by("runs", "agent", "status") == {("parent", "running"): 1, ("other", "running"): 1}
            assert scrape.one("streams") == 1
            assert scrape.one("connections") == 2
            assert scrape.one("draining") == 0
            assert 0 <= scrape.one("heartbeat_age_seconds") < scrape.one("lease_ttl_seconds") == 30
            await client.post(f"/runs/{run}/stop?wait=30", json={})
            await scraped_once(client, lambda scrape: scrape.by("runs", "status") == {})


async def test_events_are_counted_as_the_store_has_them(store):
    with measured(store=store) as service:
        async with client_of(service) as client:
            run = await started(client, "talker", {"count": 500})
            await ended(client, run)
            kept = len(service.supervisor.store.read(run, 0, 1000).result())
            # The status at the end and `done` are written by the store itself.
            scrape = await scraped_once(client, has_ends(1))
            assert scrape.one("events_total") == kept - 2


async def test_names_that_are_not_served_and_names_made_to_harm_stay_one_label():
    agents = {HOSTILE: waiter, "parent": parent}
    with measured(agents) as service:
        async with client_of(service) as client:
            ask = json.dumps({"agent": HOSTILE, "owner": "ann@example.org", "key": "a secret", "runId": "my-id"})
            headers = {"content-type": "application/json"}
            run = await client.post("/runs", content=ask, headers=headers)
            if run.status_code == 201:  # a lone surrogate is no JSON text for every parser
                await client.post("/runs/my-id/stop?wait=30", json={"reason": "words of a user"})
            run = await started(client, "parent", owner="ann@example.org", labels={"team": "sea"})
            await client.post(f"/runs/{run}/stop?wait=30", json={"reason": "words of a user"})
            response = await client.get("/metrics")
            scrape = Scrape(response.text)
            values = {value for sample in scrape.samples for value in sample.labels.values()}
            for text in ("ann", "secret", "my-id", "words", "sea", "whatever", run):
                assert not [value for value in values if text in value]
            agents_seen = {sample.labels["agent"] for sample in scrape.samples if "agent" in sample.labels}
            assert agents_seen <= {"parent", "other", HOSTILE.replace("\ud800", "?")}
            assert "other" in agents_seen


async def test_a_hostile_name_is_escaped():
    async with stoppable.Supervisor() as supervisor:
        metrics = registry(supervisor, [HOSTILE, "x" * 10_000])
        await (await supervisor.start(quick, name=HOSTILE)).result()
        await (await supervisor.start(quick, name="x" * 10_000)).result()
        text = await exposed(metrics)
    scrape = Scrape(text)
    assert scrape.by("runs_ended_total", "agent") == {HOSTILE.replace("\ud800", "?"): 1, "x" * 200: 1}


async def exposed(metrics):
    """Return what the ASGI app of prometheus-client answers."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    await make_asgi_app(metrics)(scope, receive, send)
    return b"".join(message.get("body", b"") for message in sent).decode()


async def test_labels_stay_few_however_many_names_runs_have():
    async with stoppable.Supervisor() as supervisor:
        metrics = registry(supervisor, ["known"])
        for n in range(200):
            await (await supervisor.start(quick, name=f"agent {n}")).result()
        await (await supervisor.start(quick, name="known")).result()
        samples = [sample for family in metrics.collect() for sample in family.samples]
    assert {sample.labels["agent"] for sample in samples if "agent" in sample.labels} == {"known", "other"}
    assert len(samples) < 400


async def test_two_supervisors_of_one_process_count_apart_and_share_no_registry():
    async with stoppable.Supervisor() as first, stoppable.Supervisor() as second:
        metrics = [registry(each, ["quick"]) for each in (first, second)]
        await (await first.start(quick)).result()
        for _ in range(2):
            await (await second.start(quick)).result()
        labels = {"agent": "quick", "status": "completed"}
        assert [each.get_sample_value("stoppable_runs_ended_total", labels) for each in metrics] == [1, 2]
        with pytest.raises(ValueError, match="Duplicated"):
            metrics[0].register(SupervisorCollector(second))
        again = CollectorRegistry()
        again.register(SupervisorCollector(first, ["quick"]))  # of the same counts
        assert again.get_sample_value("stoppable_runs_ended_total", labels) == 1


def test_a_blocking_supervisor_has_metrics_too():
    with sync.Supervisor() as supervisor:
        metrics = registry(supervisor, ["work"])
        supervisor.start(lambda: None, name="work").result()
        labels = {"agent": "work", "status": "completed"}
        assert metrics.get_sample_value("stoppable_runs_ended_total", labels) == 1


async def test_nothing_is_counted_before_somebody_asks():
    async with stoppable.Supervisor() as supervisor:
        plain = supervisor.store
        await (await supervisor.start(quick)).result()
        assert type(supervisor.store) is type(plain) is MemoryStore
        metrics = registry(supervisor)
        assert metrics.get_sample_value("stoppable_store_seconds_count", {"operation": "register"}) == 0


class Failing(MemoryStore):
    """A store that does not answer while it is told so."""

    is_down = False

    def append(self, *arguments):
        return self._refused() if self.is_down else super().append(*arguments)

    def finish(self, *arguments):
        return self._refused() if self.is_down else super().finish(*arguments)

    def _refused(self):
        return StoreFuture.failed(StoreError("down"))


async def test_an_outage_of_the_store_shows_in_errors_and_in_events_that_wait():
    store = Failing()
    async with stoppable.Supervisor(store, ttl=6) as supervisor:
        metrics = registry(supervisor)
        store.is_down = True
        run = await supervisor.start(talker, 11_000)

        def value(name, **labels):
            return metrics.get_sample_value(f"stoppable_{name}", labels)

        await until(lambda: value("events_dropped_total") > 0, PATIENCE)
        assert value("events_waiting") == 10_000
        await until(lambda: value("store_errors_total", operation="append") > 0, PATIENCE)
        await until(lambda: supervisor.runs[0].outcome is not None, PATIENCE)
        dropped = value("events_dropped_total")
        assert dropped > 900
        store.is_down = False
        await run.result()
        await until(lambda: value("events_waiting") == 0, PATIENCE)
        assert value("events_dropped_total") == dropped, "it is reported once, and counted once"


async def test_a_scrape_under_heavy_traffic_keeps_no_stop_waiting():
    """Scrapes without a pause, beside hundreds of live runs: every stop is answered, and so is every scrape."""
    with measured(limits=ServerLimits(owner_runs=2000)) as service:
        async with client_of(service) as client:
            runs = [await started(client, "waiter") for _ in range(100)]
            talking = [asyncio.ensure_future(started(client, "talker", {"count": 5000})) for _ in range(5)]
            scrapes, is_over = [], asyncio.Event()

            async def scrape_on():
                while not is_over.is_set():
                    scrapes.append(await scraped(client))

            scraping = [asyncio.ensure_future(scrape_on()) for _ in range(3)]
            async with asyncio.timeout(4 * DEADLINE):
                for run in runs:
                    answer = await client.post(f"/runs/{run}/stop?wait=30", json={})
                    assert answer.json()["status"] == "stopped"
                for run in await asyncio.gather(*talking):
                    await over(client, run)
            is_over.set()
            await asyncio.gather(*scraping)
            assert scrapes
            last = await scraped_once(client, has_ends(105))
            assert last.by("runs_ended_total", "agent", "status") == {
                ("waiter", "stopped"): 100,
                ("talker", "completed"): 5,
            }


# Who may read it


async def test_with_a_key_only_its_holder_reads_them():
    with measured(api_key="a long secret") as service:
        async with client_of(service) as client:
            answer = await client.get("/metrics")
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
            assert (await client.get("/metrics", headers={"authorization": "Bearer wrong"})).status_code == 401
            await scraped(client, headers={"authorization": "Bearer a long secret"})


async def test_without_a_key_only_local_host_names_are_answered():
    with measured() as service:
        async with client_of(service) as client:
            answer = await client.get("/metrics", headers={"host": "evil.example"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_host")
            await scraped(client)


async def by_header(x_user: str = Header(), x_scopes: str = Header("read")) -> Principal:
    return Principal(owner=None if x_user == "root" else x_user, sees_all=x_user == "root", scopes=x_scopes)


async def test_with_a_principal_it_takes_a_caller_who_sees_all_and_may_read():
    with measured(principal=by_header) as service:
        async with client_of(service) as client:
            answer = await client.get("/metrics", headers={"x-user": "ann"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_operator")
            answer = await client.get("/metrics", headers={"x-user": "root", "x-scopes": "stop"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")
            await scraped(client, headers={"x-user": "root"})


async def test_without_the_router_there_is_no_such_path():
    with served(AGENTS) as service:
        async with client_of(service) as client:
            assert (await client.get("/metrics")).status_code == 404


async def test_prometheus_may_ask_for_either_format():
    with measured() as service:
        async with client_of(service) as client:
            plain = await client.get("/metrics")
            assert plain.headers["content-type"].startswith("text/plain; version=")
            modern = await client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
            assert modern.headers["content-type"].startswith("application/openmetrics-text")
            assert modern.text.endswith("# EOF\n")


async def test_names_follow_the_conventions():
    with measured() as service:
        async with client_of(service) as client:
            for family in (await scraped(client)).families:
                assert re.fullmatch(r"stoppable_[a-z_]+", family.name)
                assert family.documentation.endswith(".")
                if family.type == "histogram":
                    assert family.name.endswith("_seconds")

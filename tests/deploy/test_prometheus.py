"""A real Prometheus scrapes two replicas, and evaluates every query of the dashboard and every rule of the alerts."""

import contextlib
import json
import re
import signal
import subprocess
from collections import Counter

import httpx
import pytest
import yaml
from tests.ports import held_port

from .files import DEPLOY, ROOT, SECONDS, program, wait_until
from .running import KEY, process

pytestmark = pytest.mark.timeout(1800)
RULES = DEPLOY / "alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
# what Grafana puts in
VARIABLES = {"$job": "stoppable", "$__range": "1h", "$__rate_interval": "1h"}


def test_the_rules_of_the_alerts_are_rules():
    command = [program("promtool"), "check", "rules", RULES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{RULES.read_text().count('- alert:')} rules found" in done.stdout


class Prometheus:
    """A Prometheus with the configuration of docs/operations.md, which looks every second."""

    def __init__(self, replicas, folder):
        self._replicas, self._folder = replicas, folder
        self._held = contextlib.ExitStack()

    def __enter__(self):
        page = (ROOT / "docs/operations.md").read_text()
        [block] = re.findall(r"^(    scrape_configs:\n(?:    .*\n)+)", page, re.MULTILINE)
        configuration = yaml.safe_load(block)
        [scrape] = configuration["scrape_configs"]
        scrape["static_configs"] = [{"targets": [f"127.0.0.1:{replica.port}" for replica in self._replicas]}]
        (self._folder / "key").write_text(KEY)
        scrape["authorization"] = {"credentials_file": str(self._folder / "key")}
        configuration["rule_files"] = [str(RULES)]
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        file = self._folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(configuration))
        port = self._held.enter_context(held_port())
        command = [
            program("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self.log = self._folder / "prometheus.log"
        self.process = self._held.enter_context(process(command, self.log))
        self._http = self._held.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=SECONDS))
        wait_until(lambda: self.values('up{job="stoppable"} == 1', "instance"))
        return self

    def __exit__(self, *_):
        self._held.close()

    def _get(self, path, **parameters):
        assert self.process.poll() is None, self.log.read_text()
        try:
            answer = self._http.get(path, params=parameters)
        except httpx.TransportError:
            return None  # it does not listen yet
        if answer.status_code == 503:
            return None  # it reads its files
        assert answer.status_code == 200, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def values(self, query, *labels):
        """Return the values of a query, by some labels."""
        data = self._get("/query", query=query) or {"result": []}
        return {
            tuple(each["metric"].get(label) for label in labels): float(each["value"][1]) for each in data["result"]
        }

    def panel(self, title):
        """Return what a panel of the dashboard shows."""
        [query] = [query for name, query in QUERIES if name == title]
        return {labels: value for labels, value in self.values(filled(query), *grouped(query)).items() if value}

    def rules(self):
        return {
            rule["name"]: rule for group in (self._get("/rules") or {"groups": []})["groups"] for rule in group["rules"]
        }


def filled(query):
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def grouped(query):
    return [label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")]


def audited(replica):
    """Return how many stops the audit has, by their modes and results."""
    entries = replica.http.get("/audit?limit=1000").json()["entries"]
    return Counter(
        (entry["target"]["mode"], "accepted" if result == "accepted" else "unchanged")
        for entry in entries
        if entry["action"] == "stop"
        for result in entry["result"]["runs"].values()
    )


def test_it_shows_the_stops_that_the_audit_has_and_a_replica_that_has_died(replicas, tmp_path):
    here, there = replicas
    with Prometheus(replicas, tmp_path) as prometheus:
        wait_until(lambda: len(prometheus.values('up{job="stoppable"} == 1', "instance")) == 2)
        for mode in ("graceful", "graceful", "graceful", "immediate", "kill"):
            run = here.start()
            assert there.stop(run, mode=mode).status_code in {200, 202}
            there.over(run)
        again = there.start("stubborn", input={"folder": str(tmp_path)}, policy={"grace": 300})
        for _ in range(2):
            assert here.stop(again, mode="graceful").status_code == 202
        (tmp_path / "end").touch()
        here.over(again)
        left = here.start()

        audit = audited(there)
        assert audit["graceful", "accepted"] == 4
        assert audit["kill", "accepted"] == audit["graceful", "unchanged"] == 1
        query = "sum by (mode, result) (stoppable_stop_requests_total)"
        wait_until(lambda: positive(prometheus.values(query, "mode", "result")) == audit)
        ended = 'sum(stoppable_runs_ended_total{status="stopped"})'
        wait_until(lambda: sum(prometheus.values(ended).values()) == 6)
        ladder = "sum(stoppable_stop_ended_seconds_count)"
        wait_until(lambda: prometheus.values(ladder) == {(): 6})

        wait_until(lambda: prometheus.panel("Runs") == {("running",): 1})
        wait_until(lambda: all(prometheus.values(filled(query)) for _, query in QUERIES))  # every panel shows something
        assert prometheus.panel("Versions") == {(versions_of(here),): 2}
        assert prometheus.panel("Runs by agent") == {("forever",): 1}
        assert set(prometheus.panel("Stop requests")) == {(mode,) for mode, _ in audit}
        assert set(prometheus.panel("Ends")) == {("stopped",)}
        assert len(prometheus.panel("Heartbeat")) == 2

        rules = wait_until(lambda: all_evaluated(prometheus.rules()))
        assert {name for name, rule in rules.items() if rule["health"] != "ok"} == set()
        assert "StoppableWorkersDied" not in firing(rules)
        here.signal(signal.SIGKILL)
        here.ends()
        assert there.over(left)["status"] == "failed"
        wait_until(lambda: "StoppableWorkersDied" in firing(prometheus.rules()))


def versions_of(replica):
    return re.search(r'stoppable_build_info{.*version="([^"]+)"', replica.http.get("/metrics").text)[1]


def positive(values):
    return {labels: value for labels, value in values.items() if value}


def all_evaluated(rules):
    return rules if rules and all(rule["health"] != "unknown" for rule in rules.values()) else None


def firing(rules):
    return {name for name, rule in rules.items() if rule["state"] == "firing"}

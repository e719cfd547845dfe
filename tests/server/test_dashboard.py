"""The dashboard and the alerts of deploy/ ask for what a real server has."""

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml

import stoppable
from stoppable.server.prometheus import metrics_api

from .serving import client_of, served, started
from .test_metrics import scraped

DEPLOY = Path(__file__).parents[2] / "deploy"
FROM_PROMETHEUS = {"instance", "job", "le"}


async def waiter():
    await stoppable.sleep(600)


async def stuck():
    """End with a kill, because the cancel before it is not enough."""
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        await asyncio.sleep(600)


def queries_of_the_dashboard():
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], re.findall(r"{{(\w+)}}", target["legendFormat"])


def queries_of_the_alerts():
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            texts = " ".join(rule["annotations"].values())
            yield rule["alert"], rule["expr"], re.findall(r"\$labels\.(\w+)", texts)


@pytest.fixture(scope="module")
def queries():
    return [*queries_of_the_dashboard(), *queries_of_the_alerts()]


@pytest.fixture
async def samples():
    """What a server says that has killed a run, and has another."""
    with served([stuck, waiter], routers=[metrics_api]) as service:
        async with client_of(service) as client:
            run = await started(client, "stuck", policy={"grace": 0.05, "interrupt": 0.05, "cancel": 0.05})
            await client.post(f"/runs/{run}/stop?wait=30", json={})
            await started(client, "waiter")
            return (await scraped(client)).samples


async def test_every_query_names_metrics_labels_and_values_that_there_are(queries, samples):
    labels, values = {}, {}
    for sample in samples:
        labels[sample.name] = {*sample.labels}
        for label, value in sample.labels.items():
            values.setdefault((sample.name, label), set()).add(value)
    for title, query, shown in queries:
        names = re.findall(r"\bstoppable_\w+", query)
        assert names, f"{title} asks for nothing of ours"
        assert set(names) <= set(labels), title
        own = set.intersection(*(labels[name] for name in names)) | FROM_PROMETHEUS
        grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        assert grouped <= own, title
        if grouped:
            assert set(shown) <= grouped, f"{title} shows what its sum does not have"
        else:
            assert set(shown) <= own, title
        for name, selector in re.findall(r"\b(stoppable_\w+){([^}]*)}", query):
            for label, operator, value in re.findall(r'(\w+)(!?=~?)"([^"]*)"', selector):
                assert label in labels[name] | FROM_PROMETHEUS, title
                if operator == "=":
                    assert value in values[name, label], f"{title}: no {label} is {value}"


def family_of(name):
    return re.sub(r"_(bucket|count|sum)$", "", name)


async def test_no_metric_is_left_out_of_the_dashboard(queries, samples):
    asked = {family_of(name) for _, query, _ in queries for name in re.findall(r"\bstoppable_\w+", query)}
    there = {family_of(sample.name) for sample in samples}
    assert there - asked == {"stoppable_connections_limit", "stoppable_runs_started_total"}


def test_panels_do_not_cover_one_another():
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels) == len({panel["id"] for panel in panels})


def test_parentheses_and_braces_of_every_query_are_closed(queries):
    for title, query, _ in queries:
        for begin, end in ("()", "{}", "[]"):
            assert query.count(begin) == query.count(end), title

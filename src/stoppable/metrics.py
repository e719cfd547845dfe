"""What a supervisor does, as metrics of Prometheus: ``registry(supervisor)``, or a collector for a registry of yours.

Needs the extra ``metrics``. Labels have few values, which are known beforehand: no run id, owner, key or text of a user
becomes one.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from stoppable._extras import pip_install as _pip_install

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as _error:
    raise ImportError(
        f"metrics need {_error.name}, which is not installed: {_pip_install('metrics')}", name=_error.name
    ) from _error

import stoppable
from stoppable.supervisor import Supervisor
from stoppable.supervisor.core import SupervisorCore
from stoppable.supervisor.meter import Histogram, Labels, Meter

if TYPE_CHECKING:
    from stoppable.supervisor import blocking

__all__ = ["SupervisorCollector", "registry"]


class SupervisorCollector(Collector):
    """The metrics of one supervisor, for ``CollectorRegistry.register``.

    ``agents`` are the names that become values of the label ``agent``; the runs of all others are counted as ``other``.
    Counting begins when the collector is made. Most of it is read when a scrape asks for it; what has to be counted is
    counted where the store answers, never in the code of a run.

    The metrics of two supervisors have the same names, so each needs a registry of its own.
    """

    def __init__(self, supervisor: Supervisor | blocking.Supervisor, agents: Collection[str] = ()) -> None:
        self._core: SupervisorCore = supervisor._core
        self._meter: Meter = self._core.measure()
        self._meter.name_agents(agents)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        versions: dict[Labels, float] = {(stoppable.__version__, platform.python_version()): 1}
        yield gauge("build_info", "The versions of stoppable and of Python.", versions, "version", "python")
        yield from self._runs()
        yield from self._stops()
        yield from self._log()
        yield from self._lease()
        yield from self._store()

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics, by whose names a registry refuses a second supervisor."""
        return self.collect()

    def _runs(self) -> Iterator[Metric]:
        meter = self._meter
        live: Counter[Labels] = Counter()
        for log in list(self._core.writer.logs.values()):
            if not log.is_over:
                live[meter.label(log.run.name), log.run.status.value] += 1
        with meter.lock:
            started, ended, reaped = dict(meter.started), dict(meter.ended), dict(meter.reaped)
        yield gauge("runs", "Runs that this process executes, children included.", live, "agent", "status")
        yield counter("runs_started", "Runs that this process has registered.", started, "agent")
        yield counter("runs_ended", "Runs that have ended, as this process has stored it.", ended, "agent", "status")
        yield counter("runs_reaped", "Runs that this process ended because their worker was gone.", reaped, "status")

    def _stops(self) -> Iterator[Metric]:
        meter = self._meter
        with meter.lock:
            requested, stopped = dict(meter.requested), dict(meter.stopped)
            entered_after, late = meter.entered_after, meter.late
            phases = {phase: _parts_of(histogram) for phase, histogram in meter.phases.items()}
        yield counter("stop_requests", "Requests to stop, as the audit has them.", requested, "mode", "result")
        about = "Runs that ended after they were told to stop, those below a stopped run included."
        yield counter("stopped_runs", about, stopped, "mode", "rung", "status")
        for phase, what in _PHASES.items():
            about = f"Time from the request of a stop until {what}, of each stopped run."
            yield _histogram(f"stop_{phase}_seconds", about, {(): phases[phase]})
        about = "Boundaries that stopped runs entered, all of them in a shield."
        yield counter("boundaries_entered_after_stop", about, {(): entered_after})
        yield counter("late_ends", "Ends of runs that were lost before.", {(): late})

    def _log(self) -> Iterator[Metric]:
        writer = self._core.writer
        logs = list(writer.logs.values())
        with self._meter.lock:
            events = self._meter.events
        waiting = sum(len(log.drafts) for log in logs)
        dropped = writer.dropped + sum(log.dropped for log in logs)
        yield counter("events", "Events of runs that the store has taken.", {(): events})
        yield gauge("events_waiting", "Events of runs that the store does not have yet.", {(): waiting})
        yield counter("events_dropped", "Events that were dropped while the store did not answer.", {(): dropped})

    def _lease(self) -> Iterator[Metric]:
        lease, meter = self._core.lease, self._meter
        age: dict[Labels, float] = {} if lease.age is None else {(): lease.age}
        yield gauge("heartbeat_age_seconds", "Time since the last heartbeat that the store has answered.", age)
        yield gauge("lease_ttl_seconds", "Time for which the lease lasts without a heartbeat.", {(): lease.ttl})
        yield counter("leases_lost", "How often this process has lost its lease.", {(): lease.times_lost})
        yield counter("fenced_runs", "Runs that were killed because the lease was lost.", {(): meter.fenced_runs})

    def _store(self) -> Iterator[Metric]:
        with self._meter.lock:
            failures = dict(self._meter.failures)
            calls: dict[Labels, _Parts] = {
                (kind,): _parts_of(histogram) for kind, histogram in self._meter.calls.items()
            }
        yield _histogram("store_seconds", "Time until the store has answered a call.", calls, "operation")
        yield counter("store_errors", "Calls that the store could not answer.", failures, "operation")


def registry(supervisor: Supervisor | blocking.Supervisor, agents: Collection[str] = ()) -> CollectorRegistry:
    """Return a new registry with the metrics of a supervisor, for ``generate_latest`` or ``make_asgi_app``.

    ``agents`` are the names that become values of a label, as for ``SupervisorCollector``.
    """
    made = CollectorRegistry()
    made.register(SupervisorCollector(supervisor, agents))
    return made


_PREFIX = "stoppable_"
_PHASES = {
    "acknowledged": "no boundary could be entered any more",
    "delivered": "the code learned of it",
    "ended": "the run had ended",
}


def gauge(name: str, about: str, values: Mapping[Labels, float], *labels: str) -> Metric:
    """Return a metric that goes up and down."""
    made = GaugeMetricFamily(_PREFIX + name, about, labels=labels)
    for key, value in values.items():
        made.add_metric(key, value)
    return made


def counter(name: str, about: str, values: Mapping[Labels, float], *labels: str) -> Metric:
    """Return a metric that only rises; its name gets the suffix ``_total``."""
    made = CounterMetricFamily(_PREFIX + name, about, labels=labels)
    for key, value in values.items():
        made.add_metric(key, value)
    return made


_Parts: TypeAlias = tuple[list[tuple[str, float]], float]


def _parts_of(histogram: Histogram) -> _Parts:
    return list(histogram.buckets()), histogram.sum


def _histogram(name: str, about: str, values: Mapping[Labels, _Parts], *labels: str) -> Metric:
    made = HistogramMetricFamily(_PREFIX + name, about, labels=labels)
    for key, (buckets, total) in values.items():
        made.add_metric(key, buckets, total)
    return made

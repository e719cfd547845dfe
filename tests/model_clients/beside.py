"""A program that is traced and instrumented, in the order that it is told; prints what a stop and the traces showed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from tests.providers import Providers
from tests.waiting import until

import stoppable

from . import unmodified_agents as agents

traces: list[str] = []


def opentelemetry() -> None:
    from opentelemetry import trace
    from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
    from opentelemetry.instrumentation.requests import RequestsInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Collected(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            traces.extend(span.name for span in spans)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Collected()))
    trace.set_tracer_provider(provider)
    for instrumentor in (AioHttpClientInstrumentor, HTTPXClientInstrumentor, RequestsInstrumentor):
        instrumentor().instrument()


def sentry() -> None:
    import sentry_sdk

    def collect(breadcrumb: Any, _hint: Any) -> Any:
        traces.append(breadcrumb.get("category"))
        return breadcrumb

    sentry_sdk.init(before_breadcrumb=collect, traces_sample_rate=1.0)


def datadog() -> None:
    os.environ |= {"DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false", "DD_REMOTE_CONFIGURATION_ENABLED": "false"}
    from ddtrace import patch
    from ddtrace.trace import TraceFilter, tracer

    class Collect(TraceFilter):
        def process_trace(self, trace: Any) -> None:
            traces.extend(span.name for span in trace)  # and sends nothing: there is no agent of Datadog here

    tracer.configure(trace_processors=[Collect()])
    patch(aiohttp=True, httpx=True, requests=True)


TRACERS = {"datadog": datadog, "opentelemetry": opentelemetry, "sentry": sentry}


async def stop_one(make: Callable[..., Any], *, is_async: bool, is_stream: bool) -> dict[str, Any]:
    """Stop an agent in its first model call."""
    with Providers() as providers:
        handle = await stoppable.spawn(make(providers.url, is_async=is_async, is_stream=is_stream))
        await until(lambda: providers.streaming.acquire(blocking=False), 60)
        await handle.stop()
        providers.released.set()
        outcome = await handle.outcome()
        nodes = [str(node.fate) for node in handle.run.receipt.entries if node.kind == "llm"]
        return {"status": str(outcome.status), "fates": nodes, "calls": len(providers.begun)}


def main(tracer: str, order: str) -> None:
    first, second = (
        (stoppable.instrument, TRACERS[tracer]) if order == "ours first" else (TRACERS[tracer], stoppable.instrument)
    )
    first()
    second()
    results = {}
    cases = [(agents.openai_chat, False), (agents.openai_chat, True), (agents.requests, False), (agents.aiohttp, True)]
    for make, is_async in cases:
        for is_stream in (False, True):
            traces.clear()
            name = f"{make.__name__} {'async' if is_async else 'blocking'} {'stream' if is_stream else 'plain'}"
            results[name] = asyncio.run(stop_one(make, is_async=is_async, is_stream=is_stream))
            results[name]["traces"] = len(traces)
    stoppable.uninstrument()
    print(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)  # without the exports that tracers make at the end


if __name__ == "__main__":
    main(*sys.argv[1:])

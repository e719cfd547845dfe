"""Threads of libraries make no run `lost`, and their own instrumentation works beside ours."""

import asyncio
import logging
import logging.handlers
import queue
import threading
import time
from concurrent import futures

import anyio.to_thread
import grpc
import joblib
import pytest
import sentry_sdk
import tqdm
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.integrations.asyncio import AsyncioIntegration
from sentry_sdk.integrations.stdlib import StdlibIntegration
from sentry_sdk.integrations.threading import ThreadingIntegration

import stoppable
from stoppable._engine.instrumentation.threads import library_threads_in


class NoExporter(SpanExporter):
    def export(self, spans):
        return SpanExportResult.SUCCESS


def uses_tqdm():
    bar = tqdm.tqdm(range(1), mininterval=0, leave=False)  # its monitor is a thread

    def close():
        bar.close()
        tqdm.tqdm.monitor.exit()
        tqdm.tqdm.monitor = None

    return close


def uses_opentelemetry():
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NoExporter()))
    with provider.get_tracer("t").start_as_current_span("step"):
        pass
    return provider.shutdown


def uses_a_queue_listener():
    listener = logging.handlers.QueueListener(queue.Queue(), logging.NullHandler())
    listener.start()
    return listener.stop


def uses_grpc():
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    grpc.channel_ready_future(channel).result(30)

    def close():
        channel.close()
        server.stop(None).wait()

    return close


USES = {
    uses_tqdm: "tqdm._monitor",
    uses_opentelemetry: "opentelemetry.sdk",
    uses_a_queue_listener: "logging.handlers",
    uses_grpc: "grpc.",
}
"""What starts threads, and the module of a thread that it leaves."""


@pytest.fixture(autouse=True)
def instrumented():
    stoppable.instrument()
    yield
    stoppable.uninstrument()


@pytest.fixture
def opentelemetry_beside():
    ThreadingInstrumentor().instrument()
    yield
    ThreadingInstrumentor().uninstrument()


async def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(("use", "module"), USES.items(), ids=lambda one: getattr(one, "__name__", ""))
async def test_threads_of_a_library_start_in_a_run_make_nothing_lost_and_are_listed(use, module):
    closers = []

    async def agent():
        closers.append(use())
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: closers)
    receipt = await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, receipt.in_flight) == ("stopped", "cancel", ())
    assert any(f"({module}" in name for name in handle.run.receipt.library_threads)
    closers[0]()


async def test_the_calls_of_joblib_end_with_the_stop():
    began, work_began = [], threading.Event()

    def work(number):
        began.append(number)
        work_began.set()

    def agent():
        def endless():
            number = 0
            while True:
                yield joblib.delayed(work)(number)
                number += 1

        joblib.Parallel(n_jobs=2, prefer="threads", batch_size=1)(endless())

    handle = await stoppable.spawn(agent)
    await until(work_began.is_set)
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"


async def test_an_idle_worker_of_anyio_makes_nothing_lost():
    called = []

    async def agent():
        called.append(await anyio.to_thread.run_sync(lambda: stoppable.current_run() is not None))
        called.append(library_threads_in(stoppable.current_run()))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: len(called) == 2)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert called == [True, ("AnyIO worker thread (anyio._backends._asyncio)",)]


async def _stopped_with_a_thread(seen):
    began, release = threading.Event(), threading.Event()

    def tool():
        seen()
        began.set()
        release.wait(30)

    async def agent():
        threading.Thread(target=tool, name="tool").start()
        await asyncio.to_thread(seen)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    receipt = await handle.stop("immediate")
    release.set()
    return receipt, await handle.outcome()


async def test_it_works_beside_opentelemetrys_instrumentation(opentelemetry_beside):
    values = []
    token = otel_context.attach(otel_context.set_value("trace", "kept"))
    try:
        receipt, outcome = await _stopped_with_a_thread(lambda: values.append(otel_context.get_value("trace")))
    finally:
        otel_context.detach(token)
    assert "thread:tool" in receipt.in_flight
    assert outcome.status == "stopped"
    assert set(values) == {"kept"}


async def test_it_works_beside_opentelemetrys_when_that_was_there_first():
    stoppable.uninstrument()
    ThreadingInstrumentor().instrument()
    stoppable.instrument()
    try:
        receipt, outcome = await _stopped_with_a_thread(lambda: None)
    finally:
        stoppable.uninstrument()
        ThreadingInstrumentor().uninstrument()
    assert "thread:tool" in receipt.in_flight
    assert outcome.status == "stopped"


async def test_it_works_beside_sentrys_integrations():
    sentry_sdk.init(
        dsn=None,
        default_integrations=False,
        integrations=[ThreadingIntegration(propagate_scope=True), StdlibIntegration()],
    )
    tags = []

    def seen():
        tags.append(sentry_sdk.get_isolation_scope()._tags.get("run"))

    with sentry_sdk.isolation_scope() as scope:
        scope.set_tag("run", "kept")
        receipt, outcome = await _stopped_with_a_thread(seen)
    assert "thread:tool" in receipt.in_flight
    assert outcome.status == "stopped"
    assert "kept" in tags


async def test_a_run_begins_and_ends_beside_sentrys_task_factory():
    """Which awaits the coroutine of each task in one of its own."""

    async def agent():
        return "done"

    sentry_sdk.init(integrations=[AsyncioIntegration()], default_integrations=False)
    loop = asyncio.get_running_loop()
    try:
        assert loop.get_task_factory() is not None
        handle = await stoppable.spawn(agent)
        async with asyncio.timeout(30):
            assert await handle.result() == "done"
    finally:
        loop.set_task_factory(None)
        sentry_sdk.init()

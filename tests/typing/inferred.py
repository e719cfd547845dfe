"""What type checkers infer through stoppable; checked by mypy and pyright, never run."""

import functools
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, assert_type

import stoppable
from stoppable import Supervisor, sync
from stoppable.client import AsyncClient, AsyncClientRun, Client, ClientRun
from stoppable.records import Event, RunRecord, TreeEvent
from stoppable.supervisor import BulkStop


@stoppable.agent
async def answer(question: str, depth: int = 1) -> int:
    return len(question) * depth


@stoppable.agent
def blocking(question: str) -> bytes:
    return question.encode()


@stoppable.agent
async def tokens(question: str) -> AsyncIterator[str]:
    yield question


@stoppable.agent
def pages(question: str) -> Iterator[str]:
    yield question


@stoppable.agent
def words(question: str) -> Generator[str, None, int]:
    yield question
    return len(question)


@stoppable.agent(name="reviewer", labels={"team": "a"}, policy=stoppable.Policy(grace=1))
async def reviewed(question: str) -> int:
    return len(question)


@stoppable.boundary("llm")
async def ask(question: str) -> float:
    return float(len(question))


@stoppable.boundary("tool", "look up")
def look_up(key: str) -> int:
    return len(key)


@stoppable.boundary("llm")
def chunks() -> Iterator[str]:
    yield "chunk"


async def agents_keep_their_types() -> None:
    assert_type(await answer("why"), int)
    assert_type(await answer("why", depth=2), int)
    assert_type(blocking("why"), bytes)
    assert_type(await reviewed("why"), int)
    assert_type(await stoppable.call(reviewed, "why", name="other", labels={}), int)
    assert_type(await stoppable.spawn(reviewed, "why", policy=None), stoppable.RunHandle[int])
    assert_type(sync.call(reviewed, "why", name="other"), int)
    async for token in tokens("why"):
        assert_type(token, str)
    for page in pages("why"):
        assert_type(page, str)
    assert_type(words("why"), Generator[str, None, int])
    assert_type(await ask("why"), float)
    assert_type(look_up("key"), int)
    for chunk in chunks():
        assert_type(chunk, str)


async def results_come_through() -> None:
    handle = await stoppable.spawn(answer, "why", 2)
    assert_type(handle, stoppable.RunHandle[int])
    assert_type(await handle.result(), int)
    outcome = await handle.outcome()
    assert_type(outcome, stoppable.Outcome[int])
    assert_type(outcome.result, int | None)
    assert_type(outcome.status, stoppable.Status)
    assert_type(await handle.stop(), stoppable.Receipt)
    assert_type(await stoppable.spawn(blocking, "why"), stoppable.RunHandle[bytes])
    assert_type(await stoppable.spawn(tokens, "why"), stoppable.RunHandle[None])
    assert_type(await stoppable.spawn(pages, "why"), stoppable.RunHandle[None])
    assert_type(await stoppable.spawn(words, "why", isolation="process"), stoppable.RunHandle[int])
    assert_type(handle.stream(), AsyncIterator[Any])
    assert_type(await stoppable.call(answer, "why", 2), int)
    assert_type(await stoppable.call(blocking, "why"), bytes)
    assert_type(await stoppable.call(words, "why"), int)
    assert_type(await stoppable.call(functools.partial(answer, depth=3), "why"), int)


def scripts_get_the_result() -> None:
    assert_type(stoppable.run(answer, "why", 2), int)
    assert_type(stoppable.run(blocking, "why"), bytes)
    assert_type(stoppable.run(words, "why"), int)
    assert_type(sync.spawn(answer, "why", 2), sync.BlockingHandle[int])
    assert_type(sync.spawn(blocking, "why"), sync.BlockingHandle[bytes])
    assert_type(sync.spawn(tokens, "why"), sync.BlockingHandle[None])
    assert_type(sync.spawn(pages, "why"), sync.BlockingHandle[None])
    assert_type(sync.spawn(words, "why"), sync.BlockingHandle[int])
    assert_type(sync.spawn(pages, "why").stream(), Iterator[Any])
    assert_type(sync.call(words, "why"), int)


async def blocks_are_runs() -> None:
    async with stoppable.open_run("job") as run:
        assert_type(run, stoppable.Run)
        assert_type(run.token.reason, stoppable.Reason | None)
    with stoppable.open_run("job") as run:
        assert_type(run.stop(), stoppable.Receipt)
    assert_type(stoppable.current_run(), stoppable.Run | None)
    assert_type(stoppable.should_stop(), bool)


async def streams_and_guards_keep_their_types() -> None:
    assert_type(stoppable.stream(tokens("why")), AsyncIterator[str])
    assert_type(stoppable.stream(["a"], finish=True), Iterator[str])
    assert_type(stoppable.guard(object(), "store", "__str__"), object)


async def processes_give_text_or_bytes() -> None:
    assert_type(await stoppable.run_process(["ls"]), stoppable.ProcessResult[str])
    assert_type(await stoppable.run_process(["ls"], text=False), stoppable.ProcessResult[bytes])


async def stops(supervisor: stoppable.Supervisor, kept: sync.Supervisor) -> None:
    assert_type(await supervisor.stop("run"), stoppable.Receipt)
    assert_type(await supervisor.stop(key="chat"), BulkStop)
    assert_type(kept.stop("run"), stoppable.Receipt)
    assert_type(kept.stop(key="chat", wait=1), BulkStop)
    async for event in supervisor.events("run", tree=True):
        assert_type(event, TreeEvent)
    async for line in supervisor.events("run"):
        assert_type(line, Event)
    assert_type(supervisor.blocking.events("run", tree=True), Iterator[TreeEvent])


async def supervisors_return_what_keeps_a_record(supervisor: Supervisor) -> None:
    handle = await supervisor.start(answer, "why", 1)
    assert_type(await handle.result(), int)
    assert_type(await handle.record(), RunRecord)
    assert_type(await (await supervisor.start(blocking, "why")).result(), bytes)
    assert_type(await supervisor.handle("id").record(), RunRecord)
    async for event in handle.events():
        assert_type(event, Event)


def blocking_supervisors_do_too(supervisor: sync.Supervisor) -> None:
    handle = supervisor.start(blocking, "why")
    assert_type(handle.result(), bytes)
    assert_type(handle.record(), RunRecord)


async def clients_return_handles(client: Client, asynchronous: AsyncClient) -> None:
    handle = client.start("agent")
    assert_type(handle, ClientRun)
    assert_type(handle.wait(1), RunRecord)
    assert_type(handle.events(), Iterator[Event])
    assert_type(client.handle("id").stop(), stoppable.Receipt)
    awaited = await asynchronous.start("agent")
    assert_type(awaited, AsyncClientRun)
    assert_type(await awaited.wait(), RunRecord)
    assert_type(await asynchronous.handle("id").stop(), stoppable.Receipt)

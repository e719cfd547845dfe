"""What a run was started with is in its record, as far as it has a JSON form and is not too long."""

import dataclasses
import functools
import json
import time

from stoppable import Supervisor, sync
from stoppable.supervisor import jobs


@dataclasses.dataclass
class Question:
    text: str
    depth: int = 1


async def ask(question, depth=1, *more, **options):
    return depth


async def record_of(supervisor, agent, *args, **options):
    handle = await supervisor.start(agent, *args, **options)
    await handle.outcome()
    return await supervisor.get(handle.id)


async def test_the_arguments_of_a_start_are_kept_by_their_names(store):
    async with Supervisor(store) as supervisor:
        record = await record_of(supervisor, ask, "why?", 2, "a", "b")
        assert (record.input, record.omitted) == ({"question": "why?", "depth": 2, "more": ["a", "b"]}, {})
        bound = functools.partial(ask, "why?", depth=3, tone="kind")
        assert (await record_of(supervisor, bound)).input == {
            "question": "why?",
            "depth": 3,
            "options": {"tone": "kind"},
        }
        record = await record_of(supervisor, ask, Question("why?"))  # its form may be made by code of its own
        assert (record.input, set(record.omitted)) == ({}, {"question"})
        assert (await record_of(supervisor, lambda: None)).input == {}


async def test_an_argument_without_a_json_form_or_too_long_is_left_out_and_said_so(store):
    async with Supervisor(store) as supervisor:
        record = await record_of(supervisor, ask, object(), "kept", "x" * 200_000)
        assert record.input == {"depth": "kept"}
        assert set(record.omitted) == {"question", "more"}
        assert "object" in record.omitted["question"]


async def test_a_supervisor_can_be_told_to_keep_no_input(store):
    async with Supervisor(store, keep_input=False) as supervisor:
        record = await record_of(supervisor, ask, "a secret")
        assert (record.input, record.omitted) == (None, {})


def test_blocking_code_keeps_the_input_too(store):
    with sync.Supervisor(store) as supervisor:
        handle = supervisor.start(ask, "why?")
        handle.outcome()
        assert handle.record().input == {"question": "why?"}


async def test_only_a_start_with_an_id_of_its_own_is_digested(store, monkeypatch):
    digested = []
    digest = jobs.digest
    monkeypatch.setattr(jobs, "digest", lambda *start: digested.append(start) or digest(*start))
    async with Supervisor(store) as supervisor:
        await record_of(supervisor, ask, "x" * 1000)
        assert digested == []
        await record_of(supervisor, ask, "x", run_id="mine")
        assert len(digested) == 1


async def test_forty_megabytes_of_arguments_are_not_written_out_by_the_loop(store):
    much = ["x" * 1_000_000 for _ in range(40)]

    def seconds(work):
        before = time.thread_time()
        work()
        return time.thread_time() - before

    async with Supervisor(store) as supervisor:

        def start():
            job = supervisor._core.job(ask, (much,), jobs.Options(), in_loop=True)
            assert job.omitted.keys() == {"question"}

        to_start = min(seconds(start) for _ in range(5))
        to_write = min(seconds(lambda: json.dumps(much).encode()) for _ in range(5))
        assert to_start < to_write / 2


async def test_facts_are_in_the_record_of_the_run(store):
    async with Supervisor(store) as supervisor:
        async with supervisor.open_run("chat") as run:
            run.annotate(task="t-1", url="a")
            run.annotate(url="b")
        assert (await supervisor.get(run.id)).metadata == {"task": "t-1", "url": "b"}

"""The text of model calls in an agent process is the partial of its run, also if the process has to be killed."""

import json
import signal
import time
from pathlib import Path
from urllib.request import Request, urlopen

from tests.providers import TEXT
from tests.waiting import until

import stoppable

BODY = json.dumps({"model": "gpt-5", "messages": [], "stream": True}).encode()


def asks(url, path):
    """Read a stream of a model to its end, and wait."""
    with urlopen(Request(f"{url}/v1/chat/completions", BODY), timeout=60) as answer:
        answer.read()
    Path(path).touch()
    stoppable.sync.sleep(600)


def asks_and_hangs(url, path):
    """Do the same, and let nothing but KILL end it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with urlopen(Request(f"{url}/v1/chat/completions", BODY), timeout=60) as answer:
        answer.read()
    Path(path).touch()
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


def asks_and_says(url, path):
    """Do the same as the first, with a partial of its own."""
    stoppable.append_partial("mine")
    asks(url, path)


async def stopped(agent, providers, tmp_path, **options):
    providers.released.set()
    path = tmp_path / "there"
    handle = await stoppable.spawn(agent, providers.url, str(path), isolation="process")
    await until(path.exists, 60)
    await handle.stop(**options)
    return await handle.outcome()


async def test_it_comes_back_with_the_end_of_the_run(providers, tmp_path):
    outcome = await stopped(asks, providers, tmp_path)
    assert (outcome.status, outcome.partial) == ("stopped", TEXT)


async def test_it_is_kept_although_the_process_is_killed(providers, tmp_path):
    outcome = await stopped(asks_and_hangs, providers, tmp_path, grace=0.1)
    assert (outcome.status, outcome.rung, outcome.partial) == ("stopped", "kill", TEXT)


async def test_a_partial_of_the_agent_itself_takes_its_place(providers, tmp_path):
    outcome = await stopped(asks_and_says, providers, tmp_path)
    assert (outcome.status, outcome.partial) == ("stopped", "mine")

"""Model calls of Strands that are not those of the scenarios: Bedrock, which reads in a thread, and whole answers."""

import asyncio

import boto3
import pytest
from strands import Agent, tool
from strands.models import BedrockModel, Model
from tests.adapters.strands.conftest import DEADLINE, agent_of, shape
from tests.providers import TEXT, Providers
from tests.waiting import until

import stoppable
from stoppable.adapters.turn import NO_EFFECT
from stoppable.testing import ModelServer, Reply


@pytest.fixture
def providers():
    with Providers() as providers:
        yield providers


def bedrock(providers, **options):
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "key", "region_name": "eu-central-1"}
    model = BedrockModel(
        boto_session=boto3.Session(**keys), endpoint_url=providers.url, model_id="claude-of-test", **options
    )
    return Agent(model=model, callback_handler=None)


async def acquire(semaphore):
    await until(lambda: semaphore.acquire(blocking=False), DEADLINE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore
@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_bedrock_closes_its_stream_which_a_thread_reads(mode, providers):
    agent, said = bedrock(providers), []

    async def turn():
        async for event in agent.stream_async("Count."):
            said.append(event.get("data", ""))

    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(turn)
        await acquire(providers.streaming)
        await until(lambda: "word1" in "".join(said))
        receipt = await handle.stop(mode)
        assert any(label.startswith("llm:") for label in receipt.in_flight)
        if mode == "graceful":
            providers.released.set()
        outcome = await handle.outcome()
        assert outcome.status is stoppable.Status.STOPPED
        if mode == "immediate":
            await acquire(providers.closed)
    assert TEXT.startswith(outcome.partial)
    assert shape(agent.messages) == ["user: Count.", f"assistant: {outcome.partial}"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_answer_that_is_not_streamed_is_kept_whole(providers):
    agent = bedrock(providers, streaming=False)

    async def turn():
        await agent.invoke_async("Count.")

    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(turn)
        await acquire(providers.streaming)
        await handle.stop()
        providers.released.set()
        outcome = await handle.outcome()
    assert shape(agent.messages) == ["user: Count.", f"assistant: {TEXT}"]
    assert outcome.status in (stoppable.Status.STOPPED, stoppable.Status.COMPLETED)
    assert len(providers.begun) == 1


class StopsItself(Model):
    """A model of a user, in whose answer the run is stopped at a certain chunk."""

    def __init__(self, at):
        self.at = at

    def get_config(self):
        return {}

    def update_config(self, **config):
        pass

    async def structured_output(self, *args, **kwargs):
        raise NotImplementedError
        yield

    async def stream(self, *args, **kwargs):
        call = {"toolUseId": "call-1", "name": "book"}
        for number, chunk in enumerate(
            [
                {"messageStart": {"role": "assistant"}},
                {"contentBlockDelta": {"delta": {"text": "I book."}}},
                {"contentBlockStop": {}},
                {"contentBlockStart": {"start": {"toolUse": call}}},
                {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}}}},
                {"contentBlockStop": {}},
                {"messageStop": {"stopReason": "tool_use"}},
                {"metadata": {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}}},
            ]
        ):
            if number == self.at:
                stoppable.current_run().stop("graceful")
            yield chunk


@pytest.mark.parametrize(
    ("at", "kept"),
    [
        (0, ["assistant: I book."]),  # a piece without content is no place to stop
        (2, ["assistant: I book."]),
        (4, ["assistant: I book."]),  # the call is not complete, and never begins
        (6, ["assistant: I book.", "calls book", NO_EFFECT]),
        (7, ["assistant: I book.", "calls book", NO_EFFECT]),
    ],
)
async def test_a_stop_at_each_place_of_an_answer(at, kept):
    begun = []

    @tool
    def book() -> str:
        """Book a trip."""
        begun.append("book")
        return "booked"

    agent = Agent(model=StopsItself(at), tools=[book], callback_handler=None)

    async def turn():
        await agent.invoke_async("A trip, please.")

    async with asyncio.timeout(DEADLINE):
        outcome = await (await stoppable.spawn(turn)).outcome()
    assert outcome.status is stoppable.Status.STOPPED
    assert shape(agent.messages) == ["user: A trip, please.", *kept]
    assert begun == []


async def test_an_agent_that_has_not_begun_gets_no_message():
    with ModelServer(Reply("Fine.")) as server:
        agent = agent_of(server)

        async def turn():
            stoppable.current_run().stop("graceful")
            await agent.invoke_async("A trip, please.")

        async with asyncio.timeout(DEADLINE):
            assert (await (await stoppable.spawn(turn)).outcome()).status is stoppable.Status.STOPPED
        assert agent.messages == []
        assert str(await agent.invoke_async("Still there?")) == "Fine.\n"

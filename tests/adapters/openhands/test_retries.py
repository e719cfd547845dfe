"""A model that fails is asked again after a while: a stop ends the pause, and the model is not asked again."""

import asyncio
import gc
import threading

import pytest
from litellm.litellm_core_utils.thread_pool_executor import executor
from openhands.sdk import LLM, Agent, Conversation
from pydantic import SecretStr

from stoppable.adapters.openhands import run_of, supervise
from stoppable.testing import Failure, ModelServer, Reply

from .world import DEADLINE, interrupts, status

# litellm does not know the prices of a scripted model, and leaves the loops of its sync calls open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Cost calculation failed"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def litellm_thread():
    """Let litellm start the thread that it keeps for the whole process."""
    executor.submit(lambda: None).result(DEADLINE)


@pytest.fixture
def model():
    with ModelServer(Failure(503), Failure(503), default=Reply("done")) as server:
        yield server


@pytest.fixture
def conversation(model, tmp_path):
    waits = {"num_retries": 4, "retry_min_wait": 4 * DEADLINE, "retry_max_wait": 4 * DEADLINE}
    llm = LLM(model="openai/scripted", base_url=model.url, api_key=SecretStr("none"), usage_id="agent", **waits)
    made = supervise(Conversation(agent=Agent(llm=llm, tools=[]), workspace=str(tmp_path), visualizer=None))
    made.send_message("go")
    yield made
    made.close()
    gc.collect()  # what litellm left open is warned about here, not in another test


@pytest.fixture
def pause(monkeypatch):
    """Say when a pause between two tries has begun."""
    begun = threading.Event()
    plain = LLM.log_retry_attempt

    def logged(self, state):
        plain(self, state)
        begun.set()

    monkeypatch.setattr(LLM, "log_retry_attempt", logged)
    return begun


@pytest.mark.parametrize("mode", ["immediate", "graceful"])
def test_a_stop_ends_the_pause_of_a_sync_run(model, conversation, pause, mode):
    running = threading.Thread(target=conversation.run)
    running.start()
    assert pause.wait(DEADLINE)
    conversation.interrupt(mode=mode)
    running.join(DEADLINE)
    assert not running.is_alive()
    assert_stopped(model, conversation)
    conversation.agent.llm.retry_min_wait = conversation.agent.llm.retry_max_wait = 0
    conversation.run()
    assert status(conversation) == "finished"


@pytest.mark.parametrize("mode", ["immediate", "graceful"])
async def test_a_stop_ends_the_pause_of_an_async_run(model, conversation, pause, mode):
    running = asyncio.create_task(conversation.arun())
    assert await asyncio.to_thread(pause.wait, DEADLINE)
    conversation.interrupt(mode=mode)
    async with asyncio.timeout(DEADLINE):
        await running
    assert_stopped(model, conversation)
    assert run_of(conversation).receipt.entries
    conversation.agent.llm.retry_min_wait = conversation.agent.llm.retry_max_wait = 0
    await conversation.arun()
    assert status(conversation) == "finished"


def assert_stopped(model, conversation):
    assert run_of(conversation).outcome.status == "stopped", run_of(conversation).receipt
    assert status(conversation) == "paused"
    assert interrupts(conversation) == 1
    assert len(model.requests) == 1


async def test_a_model_that_fails_is_asked_again(model, conversation):
    conversation.agent.llm.retry_min_wait = conversation.agent.llm.retry_max_wait = 0
    await conversation.arun()
    assert status(conversation) == "finished"
    assert len(model.requests) == 3

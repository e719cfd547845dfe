"""Agents for the pictures of the command line."""

import asyncio

import stoppable


@stoppable.agent
async def summary(topic: str) -> str:
    """Summarise what is known about a topic."""
    return f"All about {topic} in one sentence."


@stoppable.agent
async def deploy(service: str) -> None:
    """Deploy a service."""
    ports = {"web": 80, "mail": 25}
    print(ports[service])


@stoppable.agent
async def search(question: str) -> None:
    """Ask the model one question."""
    async with stoppable.boundary("llm", "gpt"):
        await asyncio.sleep(600)


@stoppable.agent
async def research(topic: str) -> None:
    """Ask the model several questions at once."""
    handles = [await stoppable.spawn(search, f"{topic}: {aspect}") for aspect in ("history", "today")]
    while not all(handle.run.in_flight for handle in handles):
        await asyncio.sleep(0.001)
    stoppable.emit("asked")
    for handle in handles:
        await handle.result()


@stoppable.agent
async def translate(chapters: int) -> None:
    """Translate chapter by chapter, one model call each."""
    for number in range(1, chapters + 1):
        stoppable.emit("step", step=number, of=chapters)
        async with stoppable.boundary("llm", "gpt"):
            stoppable.append_partial(f"Chapter {number}. ")
            await asyncio.sleep(0 if number <= chapters // 2 else 600)

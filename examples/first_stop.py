"""Start an agent, press Stop, read the receipt."""

import asyncio

import stoppable


@stoppable.boundary("llm")
async def ask(question: str) -> str:
    await asyncio.sleep(0.05)
    return f"an answer to {question}"


@stoppable.agent
async def searcher(topic: str) -> None:
    for number in range(1000):
        stoppable.append_partial(await ask(f"{topic} {number}"))


@stoppable.agent
async def research() -> None:
    await searcher("weather")


async def main() -> None:
    handle = await stoppable.spawn(research)
    await asyncio.sleep(0.12)
    receipt = await handle.stop(reason="enough", actor="ann")
    print(f"{receipt.answer}, in flight: {', '.join(receipt.in_flight)}")
    outcome = await handle.outcome()
    print(f"{outcome.status} by {outcome.rung}, clean: {outcome.clean}, because: {outcome.reason}")
    for node in (handle.run.receipt or receipt).entries:
        print(f"  {node.kind:5} {node.name:10} {node.fate}")


if __name__ == "__main__":
    asyncio.run(main())

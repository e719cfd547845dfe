"""Three runs of ten steps side by side: B is stopped after three, A and C complete."""

import asyncio
import os

import stoppable

SECONDS = float(os.environ.get("STEP_SECONDS", "1"))


@stoppable.agent
async def stepper(label: str) -> str:
    for step in range(1, 11):
        await stoppable.sleep(SECONDS)  # wakes at once on a stop
        stoppable.append_partial(f"{label}{step} ")
        stoppable.emit("step", step=step, of=10)
    return "ten steps"


async def main() -> None:
    async with stoppable.Supervisor() as supervisor:
        handles = {label: await supervisor.start(stepper, label) for label in "ABC"}
        async for event in supervisor.events(handles["B"].id):
            if event.type == "progress" and event.data["data"]["step"] == 3:
                receipt = await supervisor.stop(handles["B"].id, reason="wrong topic", actor="ann")
                print(f"B: {receipt.answer}, because: {receipt.reason}")
        for label, handle in handles.items():
            outcome = await handle.outcome()
            print(f"{label}: {outcome.status}, {outcome.result or 'no result'}, kept: {outcome.partial}")


if __name__ == "__main__":
    asyncio.run(main())

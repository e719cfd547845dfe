"""A script that prints what a model says, with the package of OpenAI."""

import asyncio

from openai import AsyncOpenAI


async def main():
    client = AsyncOpenAI()
    for number in range(12):
        stream = await client.chat.completions.create(
            model="gpt-5-mini",
            messages=[{"role": "user", "content": f"Tell me fact {number} about tides."}],
            stream=True,
        )
        async for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    asyncio.run(main())

"""The agent of the examples in the OpenAPI document; it takes anything."""


async def research(question=None, **more):
    return [question, more]

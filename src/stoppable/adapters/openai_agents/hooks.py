"""The hooks of a run of the SDK: they tell the turn what happens, and call the hooks of the user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agents import RunHooks

from stoppable.adapters.openai_agents.boundaries import guard_models, guard_tool
from stoppable.adapters.openai_agents.turns import AgentTurn


class Hooks(RunHooks[Any]):
    """Tells a turn what happens, and passes every call on to the user's hooks."""

    def __init__(self, users: RunHooks[Any] | None, turn: AgentTurn) -> None:
        self._users = users or RunHooks()
        self._turn = turn

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        """Begin an answer."""
        guard_models()  # a class of models may have been defined only now
        self._turn.begin_answer()
        await self._users.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """End it."""
        self._turn.end_answer(response.to_input_items())
        await self._users.on_llm_end(context, agent, response)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Guard the tool itself: hooks are executed in tasks of their own, so a boundary here would not last."""
        await self._users.on_tool_start(context, agent, tool)
        guard_tool(tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        """Note the result that the model will see."""
        call_id = getattr(context, "tool_call_id", None)
        if call_id is not None:
            self._turn.finish(call_id, result)
        await self._users.on_tool_end(context, agent, tool, result)


def _pass_on(name: str) -> Callable[..., Awaitable[None]]:
    async def hook(self: Hooks, *args: Any, **kwargs: Any) -> None:
        await getattr(self._users, name)(*args, **kwargs)

    return hook


for _name in dir(RunHooks):
    if _name.startswith("on_") and _name not in vars(Hooks):
        setattr(Hooks, _name, _pass_on(_name))

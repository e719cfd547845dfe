"""A session of a user with an agent of one framework, as an application would have it.

`bench/frameworks_unmodified/with_<framework>.py` has one such class for each framework, which knows nothing of
stoppable. The tests of an adapter install the adapter and use the same class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

MODEL = "gpt-5-mini"
INSTRUCTIONS = "You book trips."


class World(Protocol):
    """What the tools of an agent act on."""

    path: Path
    """Where tools in another process write."""

    def tools(self) -> list[Callable[..., Any]]:
        """Return functions without parameters, some of them async; the name and docstring of each are for the model."""


class Chat:
    """One session; `delegates` says that the agent leaves the work to another one, which is its tool `helper`.

    `ask` and `ask_streamed` are what an application would call for a message of the user, plain or async.
    """

    PACKAGES: tuple[str, ...] = ()
    HELPER: str | None = "task"
    """The argument of the tool `helper`; None if the framework has no agents."""

    def __init__(self, url: str, world: World, *, delegates: bool) -> None:
        self.url = url
        self.world = world
        self.delegates = delegates
        self.tools: list[Any] = world.tools()

    async def open(self) -> None:
        """Make the agent."""

    async def close(self) -> None:
        """Close what `open` has opened."""

    def ask(self, text: str) -> Any:
        raise NotImplementedError

    def ask_streamed(self, text: str) -> Any:
        raise NotImplementedError

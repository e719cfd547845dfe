"""What a file in `subjects/` says about a framework: how its agent is started, and what its own cancel is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

MODEL = "gpt-5-mini"
INSTRUCTIONS = "You book trips."
STEPS = 100
"""More steps than any scenario has, for frameworks that have a limit."""


class Subject:
    """One session of a user with an agent of one framework, as an application would write it.

    `ask` is called once for each message of the user, and keeps the session in attributes. It may be plain or async.
    """

    PACKAGES: ClassVar[tuple[str, ...]] = ()
    """What is installed into its environment, as pip takes it; the versions are printed."""
    STOPPABLE: ClassVar[str] = "stoppable"
    """What is installed for the variants with stoppable."""
    CANCEL: ClassVar[str] = "`task.cancel()`"
    """The framework's own cancel, in the words of its documentation."""
    SUB_AGENT: ClassVar[str | None] = "task"
    """The argument of the tool `helper`, which is another agent; None if the framework has no agents as tools."""
    FINAL_TOOL: ClassVar[str | None] = None
    """The tool with which the model ends a turn, with the argument `answer`; None if it just answers."""
    PACKAGE: ClassVar[Path] = Path(__file__).parents[1]
    """The folder from which such a process can import stopbench."""
    SERVES: ClassVar[bool] = False
    """Whether its tools work in a server process, which `open` starts."""

    def __init__(self, url: str, tools: Sequence[Callable[..., Any]], *, delegates: bool, with_stoppable: bool) -> None:
        self.url = url
        """The address of the model, for any client of the OpenAI API."""
        self.tools = list(tools)
        self.delegates = delegates
        """Whether the agent has another agent as its tool `helper`, which has the tools."""
        self.with_stoppable = with_stoppable
        self.log: Path | None = None
        """Where the tools write, for subjects whose tools work in another process: `make_tools` needs it there."""

    @classmethod
    def prepare(cls) -> None:
        """With stoppable: do what the page of its adapter says once per process."""

    async def open(self) -> None:
        """Make the agent."""

    def ask(self, text: str) -> Any:
        """Let the agent answer a message of the user."""
        raise NotImplementedError

    def ask_streamed(self, text: str) -> Any:
        """Do the same, and read the answer as a stream."""
        return self.ask(text)

    def cancel(self, turn: asyncio.Task[Any]) -> Any:
        """Cancel a turn as the framework documents it; may be async. `turn` is the task that called `ask`."""
        turn.cancel()

    def state(self, result: Any, error: BaseException | None) -> str:
        """Return what the framework says of the end of a turn: "stopped", "completed" or "failed"."""
        if error is None:
            return "completed"
        return "stopped" if isinstance(error, asyncio.CancelledError) else "failed"


def find_subject(module: ModuleType) -> type[Subject]:
    """Return the subclass of a module that its file is about."""
    kinds = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Subject) and each.__module__ == module.__name__
    ]
    if len(kinds) != 1:
        raise ValueError(f"{module.__name__} has {len(kinds)} subclasses of Subject: it needs one")
    return kinds[0]

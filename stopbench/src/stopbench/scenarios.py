"""The situations in which an agent is stopped."""

from __future__ import annotations

import random
from dataclasses import dataclass

FIRST, NEXT = "Book a trip, please.", "Are you still there?"
"""What the user says, and says after the stop."""
ANSWER = "Your trip is booked."
"""The last answer of the model, in the scenario that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The model asks for `tools`, again and again; the stop is pressed when so many events of one kind have happened.

    How many is chosen by the seed, from `least` to `most`.
    """

    name: str
    about: str
    tools: tuple[str, ...] = ("book_async",)
    moment: str = "effect"
    """What is waited for: a "start" of the run, a "token" or the last "answer" of the model, or an "effect"."""
    least: int = 2
    most: int = 4
    is_streamed: bool = False
    delegates: bool = False
    presses: int = 1
    ends_server: bool = False
    """Whether nothing is pressed, but the server of the subject is killed."""

    def count(self, seed: str) -> int:
        """Return how many events are waited for."""
        return random.Random(seed).randint(self.least, self.most)  # noqa: S311 - a choice, no secret


MODEL_CALL = Scenario(
    name="model call",
    about="a model call of one second that will ask for a tool, not streamed",
    moment="token",
    least=3,
    most=8,
)
STREAM = Scenario(
    name="stream", about="a streamed answer of five seconds", moment="token", least=5, most=10, is_streamed=True
)
SYNC_TOOL = Scenario(
    name="sync tool", about="a blocking tool, which has an effect every 0.1 s for a second", tools=("book_sync",)
)
ASYNC_TOOL = Scenario(name="async tool", about="an async tool that does the same")
SUBPROCESS = Scenario(
    name="subprocess tree",
    about="a blocking tool that waits for a command, which has started another one in a session of its own",
    tools=("run_command",),
    least=3,
    most=6,
)
PARALLEL = Scenario(
    name="parallel tools",
    about="a quick tool, the blocking tool and the async tool, asked for together; the quick one has finished",
    tools=("look_up", "book_sync", "book_async"),
    least=4,
    most=6,
)
SUB_AGENT = Scenario(name="sub-agent", about="the async tool of an agent that is a tool of another", delegates=True)
BEFORE_THE_START = Scenario(
    name="before the start", about="the run is asked for, and stopped before it has begun", moment="start"
)
LAST_MOMENT = Scenario(
    name="last moment", about="the model has just sent the whole of its last answer", tools=(), moment="answer"
)
DOUBLE_STOP = Scenario(
    name="double stop",
    about="an async tool with clean-up of 0.3 s; stopped again while it cleans up",
    tools=("book_with_clean_up",),
    presses=2,
)
SERVER_KILLED = Scenario(
    name="server killed",
    about="no stop: the server in which an async tool works is killed, and the agent must end or go on",
    ends_server=True,
)

SCENARIOS = {
    each.name: each
    for each in (
        MODEL_CALL,
        STREAM,
        SYNC_TOOL,
        ASYNC_TOOL,
        SUBPROCESS,
        PARALLEL,
        SUB_AGENT,
        BEFORE_THE_START,
        LAST_MOMENT,
        DOUBLE_STOP,
        SERVER_KILLED,
    )
}

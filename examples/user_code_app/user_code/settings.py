"""What whoever operates the app decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import stoppable


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How agents of users are executed, and how much each run may use."""

    folder: Path
    isolation: Literal["process", "thread"] = "process"
    """``thread`` starts faster, and costs what only a process can give: see docs/how-to/user-code.md."""
    model_url: str | None = None
    grace: float = 10.0
    """How long a call in flight may go on after a stop."""
    seconds: float = 600.0
    llm_calls: int = 200
    chained_agents: int = 50
    memory_bytes: int = 2 * 1024**3
    """Of address space, for the process of a run and for each process that it starts."""
    file_bytes: int = 100 * 1024**2
    """The largest file that the code may write."""
    trace_events: int = 2_000
    output_bytes: int = 500_000
    """Of a result, and of all that a run prints."""
    user_runs: int = 10
    """How many runs a user may have at a time, over all replicas."""

    @property
    def store(self) -> str:
        """Where runs are kept; replicas that share it stop each other's runs."""
        return f"sqlite:///{self.folder.absolute()}/runs.db"

    @property
    def database(self) -> Path:
        """Where agents and what they store are kept."""
        return self.folder.absolute() / "agents.db"

    @property
    def limits(self) -> stoppable.Limits:
        """What a run with all chained agents may use."""
        return stoppable.Limits(seconds=self.seconds, boundaries={"llm": self.llm_calls, "subrun": self.chained_agents})

    @property
    def policy(self) -> stoppable.Policy:
        """How patient a stop is: Stop should feel like one, so clean-up gets less time than by default."""
        return stoppable.Policy(grace=self.grace, interrupt=0.5, cancel=3.0, kill=2.0, blind_grace=min(1.0, self.grace))

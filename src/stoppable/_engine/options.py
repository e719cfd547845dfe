"""What may be said about a run where it is started, or once for all runs of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stoppable._core.labels import check_labels
from stoppable._core.policy import Policy, check_given
from stoppable.errors import InvalidArgument

_OPTIONS = "__stoppable_options__"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The name, labels and policy of a run; what is None comes from the agent, then from the parent."""

    name: str | None = None
    labels: Mapping[str, str] | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise InvalidArgument(f"name is {self.name!r:.40}: use a text")
        check_given(None, self.policy)
        check_labels(self.labels or {})

    def over(self, defaults: RunOptions) -> RunOptions:
        """Return these options, and the defaults where nothing was said; labels of both are kept."""
        return RunOptions(
            name=self.name or defaults.name,
            labels={**(defaults.labels or {}), **(self.labels or {})},
            policy=self.policy or defaults.policy,
        )


NO_OPTIONS = RunOptions()


def asked(
    agent: Callable[..., Any], name: str | None, labels: Mapping[str, str] | None, policy: Policy | None
) -> RunOptions:
    """Return what a start asks for, over what its agent says."""
    own = options_of(agent)
    if name is None and labels is None and policy is None:
        return own
    return RunOptions(name=name, labels=labels, policy=policy).over(own)


def options_of(agent: Callable[..., Any]) -> RunOptions:
    """Return what ``@agent(…)`` says of every run of an agent, also through a partial or a method."""
    while isinstance(agent, partial):
        agent = agent.func
    found: RunOptions = getattr(agent, _OPTIONS, NO_OPTIONS)
    return found


def keep_options(agent: Callable[..., Any], options: RunOptions) -> None:
    """Remember what ``@agent(…)`` said."""
    setattr(agent, _OPTIONS, options)


def name_of(agent: Callable[..., Any]) -> str:
    """Return the name that a run of an agent is listed under, unless its start gives another."""
    while isinstance(agent, partial):
        agent = agent.func
    return options_of(agent).name or getattr(agent, "__name__", None) or type(agent).__name__

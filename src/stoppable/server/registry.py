"""The agents that can be started over HTTP."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from stoppable._engine.agents import body_of, kind_of
from stoppable._engine.options import name_of
from stoppable._engine.recognised import recognised
from stoppable.errors import InvalidArgument
from stoppable.server.problems import Problem
from stoppable.server.signatures import Signature

Agent: TypeAlias = Callable[..., Any]
Agents: TypeAlias = Mapping[str, Agent] | Iterable[Agent] | Agent | None


class Registry(Mapping[str, Agent]):
    """Agents by their names."""

    def __init__(self, agents: Agents) -> None:
        self._agents: dict[str, Agent] = {}
        self._signatures: dict[str, Signature] = {}
        for name, agent in _named(agents):
            if name in self._agents and self._agents[name] is not agent:
                raise InvalidArgument(f"two agents have the name {name!r}: give a dict with a name for each")
            kind_of(body_of(agent))  # refuses what is no agent
            self._agents[name] = agent
            self._signatures[name] = Signature(body_of(agent))

    def __getitem__(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            known = ", ".join(self._agents) or "there are none"
            raise Problem(
                404, "agent_not_found", f"there is no agent {name[:100]!r}: use one of these ({known})"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def bound(self, name: str, arguments: Any) -> tuple[Agent, tuple[Any, ...]]:
        """Return an agent with its arguments: keywords from an object, otherwise a single one, or none at all."""
        agent = self[name]
        if arguments is NOTHING:
            return agent, ()
        self._signatures[name].check(arguments)
        if isinstance(arguments, dict):
            _check(name, agent, arguments)
            return functools.partial(agent, **arguments), ()
        return agent, (arguments,)

    def described(self) -> list[dict[str, Any]]:
        """Return what each agent is called, takes and says about itself."""
        return [
            {
                "name": name,
                "description": (inspect.getdoc(agent) or "").split("\n\n")[0],
                "kind": kind_of(body_of(agent)).value,
                "parameters": list(_parameters(body_of(agent))),
                "input": self._signatures[name].schema,
            }
            for name, agent in self._agents.items()
        ]


NOTHING: Any = object()
"""No input at all, which is not the same as null."""


def _check(name: str, agent: Agent, keywords: dict[str, Any]) -> None:
    try:
        inspect.signature(body_of(agent)).bind(**keywords)
    except TypeError as error:
        raise InvalidArgument(f"{name} cannot be called like that: {error}"[:500]) from None
    except ValueError:
        pass  # one written in C that does not tell


def _named(agents: Agents) -> Iterator[tuple[str, Agent]]:
    if agents is None:
        return
    if isinstance(agents, Mapping):
        for name, agent in cast("Mapping[str, Agent]", agents).items():
            yield name, recognised(agent, name) or agent
        return
    given: Any = [agents] if callable(agents) or recognised(agents) is not None else agents
    for agent in given:
        made: Any = recognised(agent) or agent
        yield name_of(made), made


def _parameters(body: Agent) -> Iterator[dict[str, Any]]:
    try:
        parameters = inspect.signature(body).parameters.values()
    except ValueError:
        return  # one written in C that does not tell
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        kind = parameter.annotation
        yield {
            "name": parameter.name,
            "type": None
            if kind is parameter.empty
            else kind
            if isinstance(kind, str)
            else inspect.formatannotation(kind),
            "required": parameter.default is parameter.empty,
        }

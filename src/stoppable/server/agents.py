"""The agents that can be started over HTTP, and the input that each of them takes."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

from pydantic import TypeAdapter, ValidationError

from stoppable._engine.agent_functions import body_of, kind_of, name_of
from stoppable._engine.framework_agents import recognised
from stoppable.errors import InvalidArgument
from stoppable.server.responses import Problem, dumps

_TOLD = 5  # errors at most
_DEFAULT_LENGTH = 200

_Kind = inspect.Parameter


class Signature:
    """The parameters of an agent; one without annotation, or whose type has no JSON form, accepts anything.

    An input is checked but not converted: the agent gets the JSON values.
    """

    __slots__ = ("_adapters", "_parameters", "_schema")

    def __init__(self, body: Callable[..., Any]) -> None:
        try:
            self._parameters = dict(inspect.signature(body).parameters)
        except ValueError:  # written in C, without a signature
            self._parameters = {}
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        for name, parameter in self._parameters.items():
            adapter = _adapter_of(body, parameter)
            if adapter is not None:
                self._adapters[name] = adapter
        self._schema: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of an input that is an object of keyword arguments."""
        if self._schema is None:
            self._schema = self._described()
        return self._schema

    def check(self, arguments: Any) -> None:
        """Refuse an input that does not fit the parameters: an object by name, other values as the first argument."""
        if isinstance(arguments, dict):
            given = arguments
        else:
            first = next((one.name for one in self._parameters.values() if one.kind in _POSITIONAL), None)
            given = {} if first is None else {first: arguments}
        is_single = given is not arguments
        wrong = [
            f"input{'' if is_single else '.' + name}{place}: {message}"
            for name, value in given.items()
            if name in self._adapters
            for place, message in _errors(self._adapters[name], value)
        ]
        if wrong:
            raise InvalidArgument("; ".join(wrong[:_TOLD]))

    def _described(self) -> dict[str, Any]:
        adapters = [(name, "validation", adapter) for name, adapter in self._adapters.items()]
        schemas, shared = TypeAdapter.json_schemas(adapters)  # type: ignore[arg-type]
        named = {name: schema for (name, _), schema in schemas.items()}
        taken = [one for one in self._parameters.values() if one.kind in _NAMED]
        described: dict[str, Any] = {
            "type": "object",
            "properties": {one.name: {**named.get(one.name, {}), **_default_of(one)} for one in taken},
            "required": [one.name for one in taken if one.default is _Kind.empty],
            "additionalProperties": any(one.kind is _Kind.VAR_KEYWORD for one in self._parameters.values()),
        }
        if shared.get("$defs"):
            described["$defs"] = shared["$defs"]
        return described


_POSITIONAL = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)
_NAMED = (_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY)


def _adapter_of(body: Callable[..., Any], parameter: inspect.Parameter) -> TypeAdapter[Any] | None:
    if parameter.annotation is parameter.empty or parameter.kind not in (*_POSITIONAL, parameter.KEYWORD_ONLY):
        return None
    try:
        hint = _hint_of(body, parameter)
        if hint is Any:
            return None
        made: TypeAdapter[Any] = TypeAdapter(hint)
        made.json_schema()
    except Exception:  # an annotation may be anything: a name that no longer exists, a class without a JSON form
        return None
    return made


def _hint_of(body: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    while (inner := getattr(body, "__wrapped__", None) or getattr(body, "func", None)) is not None:
        body = inner
    known = getattr(inspect.unwrap(body), "__globals__", {})
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    hint = typing.get_type_hints(holder, known, include_extras=True)[parameter.name]
    if hint is Any or parameter.default is not None:
        return hint
    return typing.Optional[hint]  # noqa: UP045 - a hint may be anything


def _default_of(parameter: inspect.Parameter) -> dict[str, Any]:
    default = parameter.default
    if default is None or isinstance(default, bool | int | float):
        return {"default": default}
    if isinstance(default, str) and len(default) <= _DEFAULT_LENGTH:
        return {"default": default}
    return {}


def _errors(adapter: TypeAdapter[Any], value: Any) -> list[tuple[str, str]]:
    try:
        adapter.validate_json(dumps(value), strict=True)
    except ValidationError as error:
        if isinstance(value, float) and value.is_integer():  # JSON has one kind of numbers
            return _errors(adapter, int(value))
        return [(_place(one), one["msg"]) for one in error.errors(include_input=False, include_url=False)]
    except Exception as error:  # a validator of the agent
        return [("", f"it could not be checked: {type(error).__name__}")]
    return []


def _place(error: Mapping[str, Any]) -> str:
    return "".join(f".{str(part)[:60]}" for part in error["loc"])


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
            kind_of(body_of(agent))  # refuses what is not an agent
            self._agents[name] = agent
            self._signatures[name] = Signature(body_of(agent))

    def __getitem__(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            known = ", ".join(self._agents) or "there are none"
            raise Problem(404, "agent_not_found", f"no agent {name[:100]!r}: the agents are {known}") from None

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
        """Return the name, input and description of each agent."""
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
"""The absence of an input, which is not the same as null."""


def _check(name: str, agent: Agent, keywords: dict[str, Any]) -> None:
    try:
        inspect.signature(body_of(agent)).bind(**keywords)
    except TypeError as error:
        raise InvalidArgument(f"{name} cannot be called like that: {error}"[:500]) from None
    except ValueError:
        pass  # written in C, without a signature


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
        return  # written in C, without a signature
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

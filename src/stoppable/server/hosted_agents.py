"""The agents that can be started over HTTP, the input that each takes, and the event loop that they run on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import threading
import typing
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from stoppable._engine.agent_functions import Kind, adapt_object, body_of, kind_of, name_of
from stoppable.errors import InvalidArgument
from stoppable.server.responses import Problem, dumps

_MOST_ERRORS = 5  # errors at most
_DEFAULT_LENGTH = 200

_Kind = inspect.Parameter
_GENERATORS = (Kind.ASYNC_GENERATOR, Kind.BLOCKING_GENERATOR)


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
    def first(self) -> str | None:
        """The name of the parameter that takes a single argument, if there is one."""
        return next((one.name for one in self._parameters.values() if one.kind in _POSITIONAL), None)

    def takes(self, *names: str) -> bool:
        """Return whether there are keyword parameters of these names."""
        parameters = self._parameters
        return all(name in parameters and parameters[name].kind in _NAMED for name in names)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of an input that is an object of keyword arguments."""
        if self._schema is None:
            self._schema = self._make_schema()
        return self._schema

    def check(self, arguments: Any) -> None:
        """Refuse an input that does not fit the parameters: an object by name, other values as the first argument."""
        single = {} if self.first is None else {self.first: arguments}
        by_name = arguments if isinstance(arguments, dict) else single
        is_single = by_name is not arguments
        wrong = [
            f"input{'' if is_single else '.' + name}{place}: {message}"
            for name, value in by_name.items()
            if name in self._adapters
            for place, message in _errors(self._adapters[name], value)
        ]
        if wrong:
            raise InvalidArgument("; ".join(wrong[:_MOST_ERRORS]))

    def _make_schema(self) -> dict[str, Any]:
        adapters = [(name, "validation", adapter) for name, adapter in self._adapters.items()]
        schemas, shared = TypeAdapter.json_schemas(adapters)  # type: ignore[arg-type]
        by_name = {name: schema for (name, _), schema in schemas.items()}
        parameters = [one for one in self._parameters.values() if one.kind in _NAMED]
        document: dict[str, Any] = {
            "type": "object",
            "properties": {one.name: {**by_name.get(one.name, {}), **_default_of(one)} for one in parameters},
            "required": [one.name for one in parameters if one.default is _Kind.empty],
            "additionalProperties": any(one.kind is _Kind.VAR_KEYWORD for one in self._parameters.values()),
        }
        if shared.get("$defs"):
            document["$defs"] = shared["$defs"]
        return document


_POSITIONAL = (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)
_NAMED = (_Kind.POSITIONAL_OR_KEYWORD, _Kind.KEYWORD_ONLY)


def _adapter_of(body: Callable[..., Any], parameter: inspect.Parameter) -> TypeAdapter[Any] | None:
    if parameter.annotation is parameter.empty or parameter.kind not in (*_POSITIONAL, parameter.KEYWORD_ONLY):
        return None
    try:
        hint = _hint_of(body, parameter)
        if hint is Any:
            return None
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
        adapter.json_schema()
    except Exception:  # an annotation may be anything: a name that no longer exists, a class without a JSON form
        return None
    return adapter


def _hint_of(body: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    while (inner := getattr(body, "__wrapped__", None) or getattr(body, "func", None)) is not None:
        body = inner
    namespace = getattr(inspect.unwrap(body), "__globals__", {})
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    hint = typing.get_type_hints(holder, namespace, include_extras=True)[parameter.name]
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
    """The agents that may be started, by name, with the signature that their inputs must fit."""

    def __init__(self, agents: Agents) -> None:
        self._agents: dict[str, Agent] = {}
        self._signatures: dict[str, Signature] = {}
        for name, agent in _by_name(agents):
            if name in self._agents and self._agents[name] is not agent:
                raise InvalidArgument(f"two agents have the name {name!r}: give a dict with a name for each")
            kind_of(body_of(agent))  # refuses what is not an agent
            self._agents[name] = agent
            self._signatures[name] = Signature(body_of(agent))

    def __getitem__(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except KeyError:
            agent_names = ", ".join(self._agents) or "there are none"
            raise Problem(404, "agent_not_found", f"no agent {name[:100]!r}: the agents are {agent_names}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def is_generator(self, name: str) -> bool:
        """Return whether there is an agent of this name, and it yields items."""
        return name in self._agents and kind_of(body_of(self._agents[name])) in _GENERATORS

    def signature(self, name: str) -> Signature:
        """Return the parameters of an agent."""
        self[name]  # or the error that lists the agents
        return self._signatures[name]

    def bind(self, name: str, arguments: Any) -> tuple[Agent, tuple[Any, ...]]:
        """Return an agent with its arguments: keywords from an object, otherwise a single one, or none at all."""
        agent = self[name]
        if arguments is NOTHING:
            return agent, ()
        self._signatures[name].check(arguments)
        if isinstance(arguments, dict):
            _check(name, agent, arguments)
            return functools.partial(agent, **arguments), ()
        return agent, (arguments,)

    def describe(self) -> list[dict[str, Any]]:
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


def _by_name(agents: Agents) -> Iterator[tuple[str, Agent]]:
    if agents is None:
        return
    if isinstance(agents, Mapping):
        for name, agent in cast("Mapping[str, Agent]", agents).items():
            yield name, adapt_object(agent, name) or agent
        return
    several: Any = [agents] if callable(agents) or adapt_object(agents) is not None else agents
    for agent in several:
        one: Any = adapt_object(agent) or agent
        yield name_of(one), one


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


_logger = logging.getLogger("stoppable.server")

T = TypeVar("T")
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]

CLOSE_SECONDS = 2.0


class AgentLoop:
    """A separate event loop for async agents; ``lifespan`` is entered on it before the first agent.

    Create pools and clients that the agents share in ``lifespan``: they then belong to this loop, not to the server's.
    """

    def __init__(self, lifespan: Lifespan | None = None) -> None:
        self._lifespan = lifespan or contextlib.nullcontext
        self._loop_future: Future[asyncio.AbstractEventLoop] = Future()
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once it is open."""
        return self._loop_future.result(0)

    def call(self, function: Callable[[T], object], argument: T) -> None:
        """Schedule a function call on the loop, without waiting for it.

        The function sees the context variables of the lifespan, not those of the calling request, which would otherwise
        stay alive as long as the run.
        """
        self.loop.call_soon_threadsafe(function, argument, context=self._context.copy())

    def open(self) -> None:
        """Start the loop and enter the lifespan; blocks until that is done, and raises what the lifespan raises."""
        self._loop_future = Future()
        self._thread = threading.Thread(target=self._work, name="stoppable-agents", daemon=True)
        self._thread.start()
        self._loop_future.result()

    def close(self) -> None:
        """Leave the lifespan and end the loop; gives up on a blocked loop after some seconds."""
        if self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # it has already ended
            self.loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CLOSE_SECONDS)
        self._thread = None

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            try:
                _run(runner.get_loop(), self._live())
            except BaseException as error:
                if not self._loop_future.done():
                    self._loop_future.set_exception(error)
                    return
                raise

    async def _live(self) -> None:
        self._closing = asyncio.Event()
        async with self._lifespan():
            self._context = contextvars.copy_context()
            self._loop_future.set_result(asyncio.get_running_loop())
            await self._closing.wait()  # as long as the server; close() sets it, and waits CLOSE_SECONDS for the rest


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run a loop until a future is done; an agent that calls ``sys.exit()`` does not end the loop of the others."""
    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as exit_error:
            if task.done():
                raise
            _logger.warning("an agent raised %s: its run has ended, the others go on", type(exit_error).__name__)

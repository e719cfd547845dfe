"""Jobs: an agent that is started as a run is checked first, then registered, then launched."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import math
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal, Never, TypedDict, get_args

from stoppable import _json
from stoppable._core import context
from stoppable._core.boundary import check
from stoppable._core.node import RunNode
from stoppable._core.values import (
    LABEL_LENGTH,
    RUN_ID,
    Limits,
    Policy,
    Reason,
    ReasonKind,
    Status,
    check_given,
    check_labels,
    new_id,
)
from stoppable._engine.agent_functions import Kind, body_of, kind_of, merge_options, name_of
from stoppable._engine.agents import start, start_isolated
from stoppable._engine.blocking import start_on_thread
from stoppable._engine.handle import RunHandle
from stoppable._engine.isolation.host import as_process_body
from stoppable._engine.isolation.messages import Values
from stoppable._engine.open_run import limit_time
from stoppable.errors import InvalidArgument, RunStopped
from stoppable.records import RunRecord, check_key, outcome_of

Isolation = Literal["auto", "task", "thread", "process"]
OnDisconnect = Literal["keep", "stop"]

_ISOLATIONS, _ON_DISCONNECT = get_args(Isolation), get_args(OnDisconnect)
_RUN_ID = re.compile(RUN_ID)

INPUT_BYTES = 100_000
"""The largest input of a run that is stored, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a start."""

    name: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] | None = None
    run_id: str | None = None
    key: str | None = None
    limits: Limits | None = None
    policy: Policy | None = None
    isolation: Isolation = "auto"
    on_disconnect: OnDisconnect = "keep"
    metadata: Mapping[str, Any] | None = None
    """Facts that are in the record from its beginning; more come by ``Run.annotate``."""

    def __post_init__(self) -> None:
        if self.run_id is not None and not (isinstance(self.run_id, str) and _RUN_ID.fullmatch(self.run_id)):
            raise InvalidArgument(
                f"{self.run_id!r} is not a valid run id: use up to 128 letters, digits and . _ ~ : -, "
                "or leave it out to get one"
            )
        for value, allowed, option in (
            (self.isolation, _ISOLATIONS, "isolation"),
            (self.on_disconnect, _ON_DISCONNECT, "on_disconnect"),
        ):
            if value not in allowed:
                raise InvalidArgument(f"unknown {option} {value!r}: use {', '.join(allowed)}")
        check_given(self.limits, self.policy)
        check_labels(self.labels or {})
        check_key(self.key)
        if self.owner is not None and not (isinstance(self.owner, str) and 0 < len(self.owner) <= LABEL_LENGTH):
            raise InvalidArgument(f"invalid owner: use a string of up to {LABEL_LENGTH} characters")

    def identity(self) -> dict[str, Any]:
        """Return what a repeated start must have in common with the first; the store compares the owner."""
        return {
            "labels": dict(self.labels or {}),
            "limits": self.limits,
            "policy": self.policy,
            "isolation": self.isolation,
            "on_disconnect": self.on_disconnect,
            "key": self.key,
        }


class StartOptions(TypedDict, total=False):
    """The options that ``Supervisor.start`` takes besides an agent and its arguments."""

    name: str | None
    owner: str | None
    labels: Mapping[str, str] | None
    run_id: str | None
    key: str | None
    limits: Limits | None
    policy: Policy | None
    isolation: Isolation
    on_disconnect: OnDisconnect
    metadata: Mapping[str, Any] | None


class Job:
    """One start."""

    __slots__ = ("_launch", "input", "omitted", "options", "record", "request", "run")

    def __init__(
        self, name: str, options: Options, request: str, launch: Callable[[RunNode], RunHandle[Any]] | None = None
    ) -> None:
        if context.current_node() is not None:
            check()  # a stopped run starts nothing, but a thread outside any run may
        self.options: Options = options
        self.request: str = request
        self.input: dict[str, Any] | None = None
        self.omitted: Mapping[str, str] = {}
        self._launch = launch
        self.run: RunNode = RunNode(
            name,
            context.current_node(),
            run_id=options.run_id,
            owner=options.owner,
            labels=options.labels,
            limits=options.limits,
            policy=options.policy,
        )

    @classmethod
    def of(
        cls,
        agent: Callable[..., Any],
        args: tuple[Any, ...],
        options: Options,
        *,
        in_loop: bool,
        keep_input: bool = True,
        worker_values: Values = Values.PICKLE,
    ) -> Job:
        """Return the job for an agent, or raise an error that says which argument is invalid."""
        body = body_of(agent)
        _check_arguments(body, args)
        launch = _launcher(agent, args, options.isolation, worker_values, in_loop=in_loop)
        own = merge_options(agent, options.name, options.labels, options.policy)
        metadata = options.metadata if keep_input else None  # it may repeat the input
        options = replace(options, labels=own.labels, policy=own.policy, metadata=metadata)
        name = own.name or name_of(agent)
        partial = body if isinstance(body, functools.partial) else functools.partial(body)
        all_args = (*partial.args, *args)
        # Only a start with an explicit id can be repeated, and the digest of large arguments takes long.
        request = new_id() if options.run_id is None else digest(name, all_args, partial.keywords, options.identity())
        job = cls(name, options, request, launch)
        if keep_input:
            job.input, job.omitted = input_of(partial.func, all_args, partial.keywords)
        return job

    @classmethod
    def around(cls, name: str, options: Options) -> Job:
        """Return the job for a block of code, which cannot be repeated."""
        return cls(name, options, new_id())

    def refuse(self, record: RunRecord) -> Never:
        """Raise the error of a block that was stopped before it began."""
        raise RunStopped(self.run.id, outcome_of(record))

    def to_record(self, worker: str) -> RunRecord:
        """Return the record of the run."""
        run, options = self.run, self.options
        return RunRecord(
            id=run.id,
            name=run.name,
            parent_id=None if run.parent is None else run.parent.id,
            root_id=run.root.id,
            owner=run.owner,
            labels=dict(run.labels),
            key=options.key,
            worker=worker,
            isolation=options.isolation,
            on_disconnect=options.on_disconnect,
            limits=options.limits,
            policy=run.policy,
            input=self.input,
            omitted=self.omitted,
            metadata=dict(options.metadata or {}),
        )

    def launch(self) -> RunHandle[Any]:
        """Start the run; if it cannot begin, its record says so."""
        assert self._launch is not None, "the job has a body"
        try:
            limit_time(self.run, self.options.limits)
            return self._launch(self.run)
        except Exception as error:
            self.run.stop(reason=Reason.of(f"it could not begin: {error}", kind=ReasonKind.EXTERNAL))
            self.run.skip()
            raise


def _check_arguments(body: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if _takes(body, len(args)):
        return
    partial = body if isinstance(body, functools.partial) else functools.partial(body)
    try:
        inspect.signature(partial.func).bind(*partial.args, *args, **partial.keywords)
    except TypeError as error:
        raise InvalidArgument(f"{name_of(body)} cannot be called like that: {error}") from None
    except ValueError:
        pass  # written in C, without a signature


def _takes(body: Callable[..., Any], count: int) -> bool:
    """Return whether the number of arguments fits a plain function; ten times as fast as ``inspect.signature``."""
    if not isinstance(body, FunctionType) or body.__dict__:
        return False
    code = body.__code__
    return code.co_argcount - len(body.__defaults__ or ()) <= count <= code.co_argcount and not code.co_kwonlyargcount


def _launcher(
    agent: Callable[..., Any], args: tuple[Any, ...], isolation: Isolation, worker_values: Values, *, in_loop: bool
) -> Callable[[RunNode], RunHandle[Any]]:
    body = body_of(agent)
    if isolation == "process":
        process_body = as_process_body(agent, args, worker_values)
        return lambda run: start_isolated(run, body, process_body)
    is_blocking = kind_of(body) in {Kind.BLOCKING, Kind.BLOCKING_GENERATOR}
    if isolation == "task" and (is_blocking or not in_loop):
        raise InvalidArgument(f"{name_of(body)} cannot run in a task: it blocks, or there is no event loop; use thread")
    if isolation == "thread" or not in_loop:
        return lambda run: start_on_thread(run, body, args)
    return lambda run: start(run, body, args)


def record_of_child(run: RunNode, worker: str) -> RunRecord:
    """Return the record of a new child run."""
    parent = run.parent
    assert parent is not None, "a child"
    return RunRecord(
        id=run.id,
        name=run.name,
        parent_id=parent.id,
        root_id=run.root.id,
        owner=run.owner,
        labels=run.labels,
        status=Status.RUNNING,
        worker=worker,
        policy=run.policy,
    )


def input_of(
    agent: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of a start that are JSON, by name, and why others are left out.

    Only plain JSON types: converting anything else calls its own code, which must not delay a start.
    """
    plain_arguments: dict[str, Any] = {}
    omitted: dict[str, str] = {}
    arguments = _by_name(agent, args, kwargs)
    for name, value in arguments.items():
        if _json.is_plain(value):
            plain, why = _json.plain(value, INPUT_BYTES // len(arguments))
        else:
            plain, why = None, f"a value of type {_json.name_of(value)} is not kept: it is not JSON, or too large"
        if why is None:
            plain_arguments[name] = plain
        else:
            omitted[name] = why
    return plain_arguments, omitted


def _by_name(agent: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if not args:
        return dict(kwargs)
    try:
        return dict(inspect.signature(agent).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # written in C, without a signature
        return {**{str(number): value for number, value in enumerate(args)}, **kwargs}


def _sort_keys(value: Any, copies: dict[int, Any]) -> Any:
    """Return a value with the keys of its dicts sorted; a value that contains itself is not changed inside itself."""
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return value
    if id(value) in copies:
        return copies[id(value)]
    copies[id(value)] = value
    copy: Any
    if kind is dict:
        copy = {
            key: _sort_keys(value[key], copies)
            for key in sorted(value, key=lambda key: (_json.name_of(key), repr(key)))
        }
    else:
        copy = kind([_sort_keys(item, copies) for item in value])
    copies[id(value)] = copy
    return copy


class _Hash:
    """A file object that keeps only a hash of what is written."""

    def __init__(self, limit: float) -> None:
        self._hash = hashlib.sha256()
        self._bytes_left = limit

    def write(self, data: bytes) -> None:
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise ValueError("too large")
        self._hash.update(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def digest(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return a digest of a start: two starts with the same agent, arguments and options have the same digest.

    The order of the keys of a dict does not matter.
    """
    start: Any = (name, args, dict(kwargs), dict(options))
    with contextlib.suppress(Exception):  # too deep, or a key without a repr: then the order matters
        start = _sort_keys(start, {})
    # First without a memo, so that equal strings give the same bytes, whether or not they are one object. Then with it:
    # a value that contains itself cannot be pickled without, and shared values would be written again and again.
    for is_without_memo, limit in ((True, 16e6), (False, math.inf)):
        file = _Hash(limit)
        pickler = pickle.Pickler(file)
        pickler.fast = is_without_memo
        try:
            pickler.dump(start)
        except Exception:  # noqa: S112 - a value that cannot be pickled is compared by its repr
            continue
        return file.hexdigest()
    try:
        text = repr(start)
    except Exception:  # nested too deeply, or its repr raises
        text = new_id()  # so no other start equals it
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()

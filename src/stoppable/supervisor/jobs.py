"""Jobs: an agent that is started as a run is checked first, then registered, then launched."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Literal, Never, TypedDict, get_args

from stoppable._core import context
from stoppable._core.boundary import check
from stoppable._core.ids import RUN_ID, new_id
from stoppable._core.labels import LABEL_LENGTH, check_labels
from stoppable._core.node import RunNode
from stoppable._core.policy import Limits, Policy, check_given
from stoppable._core.reason import Reason, ReasonKind
from stoppable._engine.agent_functions import Kind, asked, body_of, kind_of, name_of
from stoppable._engine.agents import start, start_isolated
from stoppable._engine.blocking import start_on_thread
from stoppable._engine.handle import RunHandle
from stoppable._engine.isolation.host import as_process_body
from stoppable._engine.isolation.values import Values
from stoppable._engine.open_run import limit_time
from stoppable.errors import InvalidArgument, RunStopped
from stoppable.records import RunRecord, check_key
from stoppable.supervisor.serialization import digest, input_of, outcome_of

Isolation = Literal["auto", "task", "thread", "process"]
OnDisconnect = Literal["keep", "stop"]

_ISOLATIONS, _ON_DISCONNECT = get_args(Isolation), get_args(OnDisconnect)
_RUN_ID = re.compile(RUN_ID)


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

    def __post_init__(self) -> None:
        if self.run_id is not None and not (isinstance(self.run_id, str) and _RUN_ID.fullmatch(self.run_id)):
            raise InvalidArgument(
                f"{self.run_id!r} is not a valid run id: use up to 128 letters, digits and . _ ~ : -, "
                "or leave it out to get one"
            )
        for given, known, what in (
            (self.isolation, _ISOLATIONS, "isolation"),
            (self.on_disconnect, _ON_DISCONNECT, "on_disconnect"),
        ):
            if given not in known:
                raise InvalidArgument(f"unknown {what} {given!r}: use {', '.join(known)}")
        check_given(self.limits, self.policy)
        check_labels(self.labels or {})
        check_key(self.key)
        if self.owner is not None and not (isinstance(self.owner, str) and 0 < len(self.owner) <= LABEL_LENGTH):
            raise InvalidArgument(f"invalid owner: use a string of up to {LABEL_LENGTH} characters")

    def asked(self) -> dict[str, Any]:
        """Return a digest that a repeated start must have in common with the first; the store compares the owner."""
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
        own = asked(agent, options.name, options.labels, options.policy)
        options = replace(options, labels=own.labels, policy=own.policy)
        name = own.name or name_of(agent)
        bound = body if isinstance(body, functools.partial) else functools.partial(body)
        given = (*bound.args, *args)
        # Only a start with an explicit id can be repeated, and the digest of large arguments takes long.
        request = new_id() if options.run_id is None else digest(name, given, bound.keywords, options.asked())
        job = cls(name, options, request, launch)
        if keep_input:
            job.input, job.omitted = input_of(bound.func, given, bound.keywords)
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
    bound = body if isinstance(body, functools.partial) else functools.partial(body)
    try:
        inspect.signature(bound.func).bind(*bound.args, *args, **bound.keywords)
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
        isolated = as_process_body(agent, args, worker_values)
        return lambda run: start_isolated(run, body, isolated)
    is_blocking = kind_of(body) in {Kind.BLOCKING, Kind.BLOCKING_GENERATOR}
    if isolation == "task" and (is_blocking or not in_loop):
        raise InvalidArgument(f"{name_of(body)} cannot run in a task: it blocks, or there is no event loop; use thread")
    if isolation == "thread" or not in_loop:
        return lambda run: start_on_thread(run, body, args)
    return lambda run: start(run, body, args)

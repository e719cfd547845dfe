"""``guard``: turns methods of existing objects and classes into boundaries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import Any, TypeVar

from stoppable._core import context, participants
from stoppable._engine.streams import (
    AsyncChunks,
    BlockingChunks,
    Chunks,
    EitherChunks,
    Entry,
    GuardedEntry,
    QuietEntry,
    is_async,
    is_blocking,
)
from stoppable.errors import AgentStopped, InvalidArgument

T = TypeVar("T")

_MARK = "__stoppable_guard__"


Name = str | Callable[..., str] | None
"""The name of a boundary, or a function that returns it for an object or for a call."""
Label = Callable[[tuple[Any, ...], dict[str, Any]], str]
"""Returns the name under which a call is listed, from the arguments with which the guarded method was called."""


def guard(obj: T, kind: str, *methods: str, name: str | Callable[..., str] | None = None) -> T:
    """Make methods of an object or class boundaries, in place, and return the object; guarding again changes nothing.

    A method may be named by a path: ``guard(client, "llm", "chat.completions.create")``. The boundary covers the call,
    including what a coroutine awaits. A returned stream stops between chunks, as with ``stream()``, and is in flight
    while it is read; otherwise it behaves like the original.

    ``name`` is the name under which the boundary is listed, or a function that returns it. A function of one parameter
    gets the object whose method is called: ``lambda model: model.name``. One that takes more also gets the arguments of
    the call: ``lambda client, tool, *args, **kwargs: tool``.

    Guarding an object guards only that object, not its class, and not copies made with ``with_options()`` or
    ``copy.copy()``. Guarding a class guards all its objects, and those of subclasses that do not override the method.
    """
    if not methods:
        raise InvalidArgument(f"name the methods to guard after the kind: {_type_name(obj)} has {_names(obj)}")
    if name is not None and not (isinstance(name, str) or callable(name)):
        raise InvalidArgument(f"name is {name!r:.40}: use a string, or a function of the object or of the call")
    targets = [_find(obj, path) for path in methods]  # find all of them before anything is changed
    for target in [target for target in targets if not target.is_guarded(kind)]:
        _guard_one(obj, kind, target, name)
    return obj


@dataclass(frozen=True, slots=True)
class _Target:
    """A method, and the object or class that it is an attribute of."""

    path: str
    owner: Any
    method: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def mark(self) -> _Mark | None:
        mark: _Mark | None = getattr(self.method, _MARK, None)
        return mark

    def is_guarded(self, kind: str) -> bool:
        if self.mark is None or not self.mark.covers(self.owner):
            return False
        if self.mark.kind != kind:
            raise InvalidArgument(f"{self.path!r} is guarded as {self.mark.kind!r}: it cannot be {kind!r} as well")
        return True

    def label(self, name: Name) -> Label:
        """Return a function that returns the name under which a call is listed."""
        if name is None:
            name = f"{self.owner.__name__}.{self.path}" if isinstance(self.owner, type) else self.path
        if isinstance(name, str):
            return lambda _args, _kwargs: name
        is_of_class, owner, takes_call = isinstance(self.owner, type), self.owner, _takes_call(name)
        if takes_call and is_of_class:
            return lambda args, kwargs: name(*args, **kwargs)
        if takes_call:
            return lambda args, kwargs: name(owner, *args, **kwargs)
        return (lambda args, _: name(args[0])) if is_of_class else (lambda _args, _kwargs: name(owner))


@dataclass(frozen=True, slots=True)
class _Mark:
    """The state of a guarded method; a copied object has the attribute, but would call the original."""

    owner: Any
    kind: str

    def covers(self, owner: Any) -> bool:
        """Return whether an object or class is the one that was guarded, not a copy."""
        if not isinstance(self.owner, type) or self.owner is owner:
            return self.owner is owner
        return issubclass(owner, self.owner) if isinstance(owner, type) else isinstance(owner, self.owner)


def _takes_call(name: Callable[..., str]) -> bool:
    """Return whether a function that names boundaries takes the arguments of the call, too, not only the object."""
    try:
        parameters = inspect.signature(name).parameters.values()
    except (TypeError, ValueError):  # written in C, such as operator.attrgetter
        return False
    return len(parameters) > 1 or any(each.kind is each.VAR_POSITIONAL for each in parameters)


def _find(obj: Any, path: str) -> _Target:
    owner, member = obj, obj
    for name in path.split("."):
        owner = member
        try:
            member = getattr(owner, name)
        except AttributeError:
            raise InvalidArgument(
                f"{_type_name(obj)} has no {path!r}: {_type_name(owner)} has {_names(owner)}"
            ) from None
    if isinstance(owner, type):
        member = inspect.getattr_static(owner, path.rpartition(".")[2])
        if not inspect.isfunction(member):
            raise InvalidArgument(f"{path!r} of {owner.__name__} is not an ordinary method: decorate it with @boundary")
    elif not callable(member):
        raise InvalidArgument(f"{path!r} is {type(member).__name__}, not a method: it has {_names(member)}")
    return _Target(path, owner, member)


def _type_name(obj: object) -> str:
    return obj.__name__ if isinstance(obj, type) else type(obj).__name__


def _names(obj: object) -> str:
    """List the methods of an object without reading attributes: a property may have side effects."""
    names = [name for name in dir(obj) if not name.startswith("_")]
    methods = [name for name in names if callable(inspect.getattr_static(obj, name, None))]
    return ", ".join(methods or names) or "no methods"


def _guard_one(obj: Any, kind: str, target: _Target, name: Name) -> None:
    is_copy = target.mark is not None and not isinstance(target.owner, type)
    method = _own_method(target) if is_copy else target.method
    wrapper = functools.wraps(method)(_guard_method(kind, target.label(name), method))
    setattr(wrapper, _MARK, _Mark(target.owner, kind))
    try:
        _set(target.owner, target.name, wrapper)
        stays = _find(obj, target.path).method is wrapper
    except (AttributeError, TypeError):
        raise InvalidArgument(
            f"{target.name!r} of {_type_name(target.owner)} cannot be replaced: use `with boundary({kind!r}, …)` "
            "around the call"
        ) from None
    if not stays:
        raise InvalidArgument(
            f"{target.path!r} is a new object each time it is read: keep "
            f"{target.path.rpartition('.')[0] or 'the object'!r} in a variable, guard it and use that"
        )


def _own_method(target: _Target) -> Callable[..., Any]:
    """Return the copied object's own method, instead of the guarded one that was copied into it."""
    vars(target.owner).pop(target.name)
    method: Callable[..., Any] = getattr(target.owner, target.name)
    return method


def _set(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    try:
        setattr(owner, name, wrapper)
    except (AttributeError, TypeError, ValueError):
        # Models that refuse unknown fields, and frozen ones, still have a __dict__.
        object.__setattr__(owner, name, wrapper)


def _guard_method(kind: str, label: Label, method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            entry = GuardedEntry(kind, label(args, kwargs))
            try:
                entry.__enter__()
            except AgentStopped:
                await participants.engine.hold_back()
                raise
            with _left_on_error(entry):
                result = await method(*args, **kwargs)
            return _hand_out(entry, result, kwargs)

        return call_async
    if inspect.iscoroutinefunction(inspect.unwrap(method)):
        return _guarded_wrapper(kind, label, method)

    def call(*args: Any, **kwargs: Any) -> Any:
        name = label(args, kwargs)
        entry = GuardedEntry(kind, name).__enter__()
        with _left_on_error(entry):
            result = method(*args, **kwargs)
        if inspect.iscoroutine(result):
            entry.leave()  # it may never be awaited: it is listed only while it is awaited
            return _await_guarded(GuardedEntry(kind, name), result, kwargs)
        return _hand_out(entry, result, kwargs)

    return call


def _guarded_wrapper(kind: str, label: Label, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the guarded form of a plain function that wraps a coroutine function, as in the openai client.

    Nearly always the call returns a coroutine, and awaiting that is the boundary; otherwise the call itself is.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        name = label(args, kwargs)
        entry = QuietEntry(kind, name).__enter__()
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            entry.tell()
            entry.leave(error)
            raise
        if inspect.iscoroutine(result):
            entry.withdraw()
            return _await_guarded(GuardedEntry(kind, name), result, kwargs)
        entry.tell()
        return _hand_out(entry, result, kwargs)

    return call


async def _await_guarded(entry: Entry, coroutine: Coroutine[Any, Any, Any], kwargs: dict[str, Any]) -> Any:
    scope = context.current.get()
    if not entry.enter_uncounted(scope):
        coroutine.close()
        try:
            scope.raise_stopped()
        except AgentStopped:
            await participants.engine.hold_back()
            raise
    with _left_on_error(entry):
        result = await coroutine
    return _hand_out(entry, result, kwargs)


class _left_on_error:  # noqa: N801 - reads as a statement
    """Leaves the gate if the call fails; otherwise a returned stream may take over the boundary."""

    __slots__ = ("_entry",)

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._entry.leave(error)


def _hand_out(entry: Entry, result: Any, kwargs: dict[str, Any]) -> Any:
    """Return the result of a guarded call; a stream takes over the boundary from the call."""
    if entry._run is None or isinstance(result, Chunks) or not _is_stream(entry.kind, result, kwargs):
        entry.leave()
        return result
    match is_blocking(result), is_async(result):
        case True, True:
            return _GuardedEither(result, entry=entry)
        case True, False:
            return _GuardedBlocking(result, entry=entry)
    return _GuardedAsync(result, entry=entry)


def _is_stream(kind: str, result: object, kwargs: dict[str, Any]) -> bool:
    """Return whether a value is a stream, and not another closable iterable such as a file, cursor or response."""
    if isinstance(result, GeneratorType | AsyncGeneratorType):
        return True
    if not (is_blocking(result) or is_async(result)) or not (hasattr(result, "close") or hasattr(result, "aclose")):
        return False
    is_iterator = hasattr(type(result), "__next__") or hasattr(type(result), "__anext__")
    return bool(kwargs.get("stream")) or (kind == "llm" and is_iterator)


class PassThrough(Chunks[Any]):
    """A proxy that changes only the iteration of what the method returned; it even has the same class."""

    __slots__ = ()

    @property
    def __class__(self) -> type[Any]:
        return type(self._source)

    @__class__.setter
    def __class__(self, value: type[Any]) -> None:
        raise TypeError("the class of a guarded stream cannot be changed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __repr__(self) -> str:
        return repr(self._source)

    def close(self) -> Any:
        """Close it as its own ``close()`` does, which may be a coroutine."""
        self._over = True
        self._leave_closed()
        return self._source.close()


class _GuardedBlocking(PassThrough, BlockingChunks[Any]):
    __slots__ = ()


class _GuardedAsync(PassThrough, AsyncChunks[Any]):
    __slots__ = ()


class _GuardedEither(PassThrough, EitherChunks[Any]):
    __slots__ = ()

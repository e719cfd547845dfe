"""``guard``: turns methods of existing objects and classes into boundaries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import AsyncGeneratorType, GeneratorType, TracebackType
from typing import Any, TypeVar

from stoppable._core import context, participants
from stoppable._engine.streaming.chunks import Chunks, Entry, GuardedEntry, QuietEntry
from stoppable._engine.streaming.stream import AsyncChunks, BlockingChunks, EitherChunks, is_async, is_blocking
from stoppable.errors import AgentStopped, InvalidArgument

T = TypeVar("T")

_MARK = "__stoppable_guard__"


def guard(obj: T, kind: str, *methods: str, name: str | Callable[[Any], str] | None = None) -> T:
    """Make methods of an object or class boundaries, in place, and return the object; guarding again changes nothing.

    A method may be named by a path: ``guard(client, "llm", "chat.completions.create")``. The boundary covers the call,
    including what a coroutine awaits. A returned stream stops between chunks, as with ``stream()``, and is in flight
    while it is read; otherwise it behaves like the original. ``name`` is the name under which the boundary is listed,
    or a function that returns it for the object whose method is called.

    Guarding an object guards only that object, not its class, and not copies made with ``with_options()`` or
    ``copy.copy()``. Guarding a class guards all its objects, and those of subclasses that do not override the method.
    """
    if not methods:
        raise InvalidArgument(f"name the methods to guard after the kind: {_named(obj)} has {_names(obj)}")
    if name is not None and not (isinstance(name, str) or callable(name)):
        raise InvalidArgument(f"name is {name!r:.40}: use a string, or a function of the object")
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

    def label(self, name: str | Callable[[Any], str] | None) -> Callable[[tuple[Any, ...]], str]:
        """Return a function that returns the name under which a call is listed."""
        if isinstance(name, str):
            return lambda _: name
        if isinstance(self.owner, type):
            default = f"{self.owner.__name__}.{self.path}"
            return (lambda _: default) if name is None else (lambda args: name(args[0]))
        return (lambda _: self.path) if name is None else (lambda _: name(self.owner))


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


def _find(obj: Any, path: str) -> _Target:
    owner, found = obj, obj
    for name in path.split("."):
        owner = found
        try:
            found = getattr(owner, name)
        except AttributeError:
            raise InvalidArgument(f"{_named(obj)} has no {path!r}: {_named(owner)} has {_names(owner)}") from None
    if isinstance(owner, type):
        found = inspect.getattr_static(owner, path.rpartition(".")[2])
        if not inspect.isfunction(found):
            raise InvalidArgument(f"{path!r} of {owner.__name__} is not an ordinary method: decorate it with @boundary")
    elif not callable(found):
        raise InvalidArgument(f"{path!r} is {type(found).__name__}, not a method: it has {_names(found)}")
    return _Target(path, owner, found)


def _named(obj: object) -> str:
    return obj.__name__ if isinstance(obj, type) else type(obj).__name__


def _names(obj: object) -> str:
    """List the methods of an object without reading attributes: a property may have side effects."""
    names = [name for name in dir(obj) if not name.startswith("_")]
    methods = [name for name in names if callable(inspect.getattr_static(obj, name, None))]
    return ", ".join(methods or names) or "no methods"


def _guard_one(obj: Any, kind: str, target: _Target, name: str | Callable[[Any], str] | None) -> None:
    is_copy = target.mark is not None and not isinstance(target.owner, type)
    method = _own_method(target) if is_copy else target.method
    wrapper = functools.wraps(method)(_guarded(kind, target.label(name), method))
    setattr(wrapper, _MARK, _Mark(target.owner, kind))
    try:
        _set(target.owner, target.name, wrapper)
        stays = _find(obj, target.path).method is wrapper
    except (AttributeError, TypeError):
        raise InvalidArgument(
            f"{target.name!r} of {_named(target.owner)} cannot be replaced: use `with boundary({kind!r}, …)` "
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


def _guarded(kind: str, label: Callable[[tuple[Any, ...]], str], method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            entry = GuardedEntry(kind, label(args))
            try:
                entry.__enter__()
            except AgentStopped:
                await participants.hold_back()
                raise
            with _left_on_error(entry):
                result = await method(*args, **kwargs)
            return _handed_out(entry, result, kwargs)

        return call_async
    if inspect.iscoroutinefunction(inspect.unwrap(method)):
        return _guarded_wrapper(kind, label, method)

    def call(*args: Any, **kwargs: Any) -> Any:
        name = label(args)
        entry = GuardedEntry(kind, name).__enter__()
        with _left_on_error(entry):
            result = method(*args, **kwargs)
        if inspect.iscoroutine(result):
            entry.leave()  # it may never be awaited: it is listed only while it is awaited
            return _awaited(GuardedEntry(kind, name), result, kwargs)
        return _handed_out(entry, result, kwargs)

    return call


def _guarded_wrapper(
    kind: str, label: Callable[[tuple[Any, ...]], str], method: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the guarded form of a plain function that wraps a coroutine function, as in the openai client.

    Nearly always the call returns a coroutine, and awaiting that is the boundary; otherwise the call itself is.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        name = label(args)
        entry = QuietEntry(kind, name).__enter__()
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            entry.tell()
            entry.leave(error)
            raise
        if inspect.iscoroutine(result):
            entry.withdraw()
            return _awaited(GuardedEntry(kind, name), result, kwargs)
        entry.tell()
        return _handed_out(entry, result, kwargs)

    return call


async def _awaited(entry: Entry, coroutine: Coroutine[Any, Any, Any], kwargs: dict[str, Any]) -> Any:
    scope = context.current.get()
    if not entry.enter_unpaid(scope):
        coroutine.close()
        try:
            scope.raise_stopped()
        except AgentStopped:
            await participants.hold_back()
            raise
    with _left_on_error(entry):
        result = await coroutine
    return _handed_out(entry, result, kwargs)


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


def _handed_out(entry: Entry, result: Any, kwargs: dict[str, Any]) -> Any:
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

"""Statements for databases as boundaries of the kind ``store``, for users who ask for it by name.

By default they are none: a stop between two statements leaves a transaction half done, and not every agent is prepared
for that. After a stop no statement is begun; one that is under way is never cut off by INTERRUPT.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from stoppable._engine.instrumentation import patches
from stoppable._engine.outgoing import calls
from stoppable._engine.outgoing.calls import Label

_VERB = re.compile(r"\s*([A-Za-z]{1,20})")
_CALL = "_stoppable_call"
_included: set[str] = set()


def include(names: Iterable[str]) -> None:
    """Make the statements of these packages boundaries, once they are imported."""
    for name in names:
        for module, install in _PACKAGES.get(name, {}).items():
            _included.add(name)
            patches.when_imported(module, install)


def forget_included() -> None:
    """Make no statements boundaries."""
    _included.clear()


def _label(package: str, statement: object) -> tuple[str, Label]:
    """Return a label with the first word of the statement: the rest may contain anything."""
    verb = _VERB.match(statement) if isinstance(statement, str) else None
    return "", Label("store", package if verb is None else f"{package} {verb[1].upper()}")


@contextlib.contextmanager
def _during(call: calls.OutgoingCall | None) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if call is not None:
            call.leave(error)
        raise
    if call is not None:
        call.leave()


def _statement_of(package: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose first argument is a statement, as a boundary."""
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def execute_async(self: Any, *args: Any, **options: Any) -> Any:
            with _during(await calls.begin_async(_label, package, args[0] if args else None)):
                return await original(self, *args, **options)

        return execute_async

    @functools.wraps(original)
    def execute(self: Any, *args: Any, **options: Any) -> Any:
        with _during(calls.begin(_label, package, args[0] if args else None)):
            return original(self, *args, **options)

    return execute


def _patch(package: str, owner: type[Any], *names: str) -> None:
    for name in names:
        patches.put(owner, name, functools.partial(_statement_of, package))


def _psycopg(module: ModuleType) -> None:
    for cursor in (module.Cursor, module.AsyncCursor):
        _patch("psycopg", cursor, "execute", "executemany")


def _asyncpg(module: ModuleType) -> None:
    _patch("asyncpg", module.Connection, "execute", "executemany", "fetch", "fetchmany", "fetchrow", "fetchval")


def _redis(module: ModuleType) -> None:
    _patch("redis", module.Redis, "execute_command")


def _redis_pipeline(module: ModuleType) -> None:
    _patch("redis", module.Pipeline, "execute")


def _sqlite3(module: ModuleType) -> None:
    """Give connections our cursors: the classes of ``sqlite3`` are written in C, and cannot be changed."""

    # mypy cannot know the base classes: they are attributes of a module that is passed in.
    class Cursor(module.Cursor):  # type: ignore[misc, name-defined]
        pass

    class Connection(module.Connection):  # type: ignore[misc, name-defined]
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        # The originals make a cursor of their own class, whatever `cursor` returns.
        def execute(self, *args: Any) -> Any:
            return self.cursor().execute(*args)

        def executemany(self, *args: Any) -> Any:
            return self.cursor().executemany(*args)

        def executescript(self, *args: Any) -> Any:
            return self.cursor().executescript(*args)

    _patch("sqlite3", Cursor, "execute", "executemany", "executescript")

    def connect_of(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def connect(*args: Any, **options: Any) -> Any:
            if len(args) < _FACTORY and patches.is_on():
                options.setdefault("factory", Connection)
            return original(*args, **options)

        return connect

    for owner in (module, module.dbapi2):
        patches.put(owner, "connect", connect_of)


_FACTORY = 6
"""The place of ``factory`` among the arguments of ``sqlite3.connect``."""


def _sqlalchemy(module: ModuleType) -> None:
    if not module.event.contains(module.Engine, "before_cursor_execute", _before):  # listeners stay, and do nothing
        module.event.listen(module.Engine, "before_cursor_execute", _before)
        module.event.listen(module.Engine, "after_cursor_execute", _after)
        module.event.listen(module.Engine, "handle_error", _failed)


# SQLAlchemy looks at the number of parameters of a listener.
def _before(_connection: Any, _cursor: Any, statement: str, _parameters: Any, execution: Any, _many: object) -> None:
    if "sqlalchemy" in _included and execution is not None:
        setattr(execution, _CALL, calls.begin(_label, "sqlalchemy", statement))


def _after(_connection: Any, _cursor: Any, _statement: str, _parameters: Any, execution: Any, _many: object) -> None:
    _leave(execution, None)


def _failed(failure: Any) -> None:
    _leave(failure.execution_context, failure.original_exception)


def _leave(execution: Any, error: BaseException | None) -> None:
    call: calls.OutgoingCall | None = getattr(execution, _CALL, None)
    if call is not None:
        setattr(execution, _CALL, None)
        call.leave(error)


_PACKAGES: dict[str, dict[str, Callable[[ModuleType], None]]] = {
    "asyncpg": {"asyncpg": _asyncpg},
    "psycopg": {"psycopg": _psycopg},
    "redis": {
        "redis": _redis,
        "redis.asyncio": _redis,
        "redis.client": _redis_pipeline,
        "redis.asyncio.client": _redis_pipeline,
    },
    "sqlalchemy": {"sqlalchemy": _sqlalchemy},
    "sqlite3": {"sqlite3": _sqlite3},
}

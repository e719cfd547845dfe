"""Receives notifications of changes that other processes made.

Notifications are only for speed: losing one, while the connection is down, must not matter. So after every connect the
names that this process follows are stored again, and all listeners are called.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import psycopg

from stoppable.errors import StoppableError
from stoppable.stores.base import Listeners
from stoppable.stores.postgres.pg_connection import pause
from stoppable.stores.postgres.pg_transaction import RUN, WORKER, PgTransaction
from stoppable.stores.sql import rows

CHECK_SECONDS = 2.0
"""How often the connection is tested: a connection that was cut silently looks like one without news."""

_STOPS = f'["{WORKER}'  # how notifications of stops begin; they are delivered first
_KEPT_SECONDS = 90.0  # how long a name is followed without being renewed
_RENEW_SECONDS = 30.0

_FOLLOW = """INSERT INTO followed (name, channel, expires) SELECT name, %s, %s FROM unnest(%s::text[]) AS name
 WHERE NOT EXISTS (SELECT 1 FROM followed AS known WHERE known.name = name.name AND channel = %s)"""
_RENEW = "UPDATE followed SET expires = %s WHERE channel = %s"
_UNFOLLOW = "DELETE FROM followed WHERE channel = %s AND name = ANY(%s)"

_log = logging.getLogger("stoppable")


class NotificationListener:
    """A thread with its own connection that calls the listeners of this process."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        transaction: Callable[[psycopg.Connection[Any]], PgTransaction],
        channel: str,
        hints: Listeners,
        watchers: Listeners,
    ) -> None:
        self._connect = connect
        self._transaction = transaction
        self._channel = channel
        self._hints = hints
        self._watchers = watchers
        self._followed: set[str] = set()
        self._is_closed = False
        self.backend: int = 0
        """The server's process for the connection, for tests."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._run, name="stoppable-postgres-listener", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Follow the names of new listeners."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it will look anyway
            os.write(self._write, b"!")

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        self.look()
        self._thread.join(10)
        os.close(self._read)
        os.close(self._write)

    def _run(self) -> None:
        failures = 0
        while not self._is_closed:
            try:
                with self._connect() as connection:
                    self._followed = set()
                    self.backend = connection.info.backend_pid
                    connection.execute(f'LISTEN "{self._channel}"')
                    self._follow(connection)
                    failures = 0
                    self._hear(connection)
            except (psycopg.Error, StoppableError) as error:
                if not self._is_closed:
                    _log.warning("stoppable: no notifications, stops arrive with the next heartbeat: %s", error)
                    self._wait(None, pause(failures))
                    failures += 1

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        renew_at = time.monotonic() + _RENEW_SECONDS
        while not self._is_closed:
            self._take(connection)
            if not self._wait(connection.fileno(), CHECK_SECONDS):
                connection.execute("SELECT 1")
            if time.monotonic() > renew_at:
                renew_at = time.monotonic() + _RENEW_SECONDS
                self._follow(connection, renew=True)
            self._follow(connection)
        connection.execute("DELETE FROM followed WHERE channel = %s", (self._channel,))

    def _wait(self, socket: int | None, seconds: float) -> bool:
        """Wait for news from the database or this process, and return whether there were any."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            if socket is not None:
                selector.register(socket, selectors.EVENT_READ)
            ready = selector.select(seconds)
        if any(key.fd == self._read for key, _ in ready):
            os.read(self._read, 4096)
        return bool(ready)

    def _follow(self, connection: psycopg.Connection[Any], *, renew: bool = False) -> None:
        """Store the names that this process follows, then call their listeners, which may have missed something."""
        names = {WORKER + name for name in self._hints.names()} | {RUN + name for name in self._watchers.names()}
        new, old = names - self._followed, self._followed - names
        if not (new or old or renew):
            return
        transaction = self._transaction(connection)
        with connection.pipeline():
            transaction.begin()
            transaction.in_order()
            expires = transaction.now() + _KEPT_SECONDS
            if renew:
                transaction.run(_RENEW, (expires, self._channel))
            transaction.run(_FOLLOW, (self._channel, expires, list(names if renew else new), self._channel))
            transaction.run(_UNFOLLOW, (self._channel, list(old)))
            transaction.commit()
        self._followed = names
        self._tell(new)

    def _tell(self, names: Collection[str]) -> None:
        self._hints.tell([name.removeprefix(WORKER) for name in names if name.startswith(WORKER)], None)
        self._watchers.tell([name.removeprefix(RUN) for name in names if name.startswith(RUN)])

    def _take(self, connection: psycopg.Connection[Any]) -> None:
        """Deliver the notifications that have arrived."""
        connection.pgconn.consume_input()
        payloads = []
        while (notification := connection.pgconn.notifies()) is not None:
            payloads.append(notification.extra.decode())
        for payload in sorted(payloads, key=lambda payload: not payload.startswith(_STOPS)):
            self._deliver(payload)

    def _deliver(self, payload: str) -> None:
        if not payload:  # it was too long for a notification
            self._tell(self._followed)
            return
        name, detail = rows.decode(payload)
        if detail:
            self._hints.tell([name.removeprefix(WORKER)], rows.intents(rows.decode(detail)))
        self._tell([name])  # then they read the database, which decides

"""Statements of SQLAlchemy and commands of redis are boundaries if their packages are included."""

import asyncio
import socket
import threading

import pytest
import redis
import redis.asyncio
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import stoppable


@pytest.fixture(autouse=True)
def instrumented():
    stoppable.instrument(include=["sqlalchemy", "redis"])
    yield
    stoppable.uninstrument()


# SQLAlchemy

INSERT = sqlalchemy.text("INSERT INTO notes VALUES ('a note')")


@pytest.fixture
def engine(tmp_path):
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'notes.db'}")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE notes (text)"))
    yield engine
    engine.dispose()


def notes(engine):
    with engine.begin() as connection:
        return connection.execute(sqlalchemy.text("SELECT text FROM notes")).all()


async def test_a_statement_of_sqlalchemy_is_a_boundary_until_it_has_ended_or_failed(engine):
    entered = []

    def look(_connection, cursor, *_):
        cursor.connection.create_function("look", 0, lambda: entered.extend(run.in_flight))

    sqlalchemy.event.listen(engine, "before_cursor_execute", look)
    async with stoppable.open_run("agent") as run:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("SELECT look()")).all()
            assert run.in_flight == ()
            with pytest.raises(sqlalchemy.exc.OperationalError):
                connection.execute(sqlalchemy.text("SELECT nothing"))
            assert run.in_flight == ()
    assert entered == ["store:sqlalchemy SELECT"]


async def test_after_a_stop_sqlalchemy_begins_no_statement_and_its_transaction_is_rolled_back(engine):
    def agent():
        with engine.begin() as connection:
            connection.execute(INSERT)
            stoppable.current_run().stop()
            connection.execute(INSERT)

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert notes(engine) == []


async def test_so_it_is_with_its_async_engine(engine):
    async_engine = create_async_engine(str(engine.url).replace("sqlite", "sqlite+aiosqlite", 1))

    async def agent():
        async with async_engine.begin() as connection:
            await connection.execute(INSERT)
            stoppable.current_run().stop()
            await connection.execute(INSERT)

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert notes(engine) == []
    await async_engine.dispose()


# redis. No server can be installed with pip: this one speaks its protocol, and answers every command with OK.


@pytest.fixture
def server():
    commands = []

    def serve(connection):
        with connection, connection.makefile("rb") as file:
            while count := file.readline():
                words = []
                for _ in range(int(count[1:])):
                    words.append(file.read(int(file.readline()[1:]) + 2)[:-2].decode())
                commands.append(words[0])
                connection.sendall(b"-ERR unknown command\r\n" if words[0] == "HELLO" else b"+OK\r\n")

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1], commands
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


async def test_after_a_stop_no_command_is_sent_to_redis(server):
    port, commands = server

    async def agent():
        client = redis.asyncio.Redis(port=port, protocol=2)
        try:
            await client.set("key", "before")
            stoppable.current_run().stop()
            await client.set("key", "after")
        finally:
            async with stoppable.shielded(30):
                await client.aclose()

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert commands.count("SET") == 1


def test_nor_by_a_blocking_client_or_a_pipeline(server):
    port, commands = server

    def agent():
        with redis.Redis(port=port, protocol=2) as client, client.pipeline(transaction=False) as pipeline:
            client.set("key", "before")
            pipeline.set("key", "after")
            stoppable.current_run().stop()
            pipeline.execute()

    async def main():
        return await (await stoppable.spawn(agent)).outcome()

    assert asyncio.run(main()).status == "stopped"
    assert commands.count("SET") == 1

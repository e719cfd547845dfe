"""Statements are boundaries if the package of the database is included; tests/libraries and tests/fleet have others."""

import sqlite3

import pytest

import stoppable


def connect():
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute("CREATE TABLE notes (text)")
    return connection


async def in_flight_during(statement, *args):
    """Return what is in flight while a statement calls back."""
    seen = []
    async with stoppable.open_run("agent") as run:
        connection = connect()
        connection.create_function("look", 0, lambda: seen.extend(run.in_flight))
        connection.execute(statement, *args)
        connection.close()
    return seen


async def test_a_statement_is_a_boundary_that_says_no_more_than_its_first_word():
    stoppable.instrument(include=["sqlite3"])
    assert await in_flight_during(" select look(), ?", ["a secret"]) == ["store:sqlite3 SELECT"]


async def test_without_include_it_is_none():
    assert await in_flight_during("SELECT look()") == []


@pytest.mark.parametrize("execute", ["execute", "executemany", "executescript"])
async def test_after_a_stop_no_statement_is_begun_and_what_was_begun_is_rolled_back(execute):
    stoppable.instrument(include=["sqlite3"])
    connection = connect()

    async def agent():
        with connection:
            connection.execute("INSERT INTO notes VALUES ('half')")
            stoppable.current_run().stop()
            getattr(connection, execute)("INSERT INTO notes VALUES ('other half')", *([[()]] * (execute[7:] == "many")))

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert connection.execute("SELECT * FROM notes").fetchall() == []
    connection.close()


async def test_a_statement_that_fails_ends_its_boundary():
    stoppable.instrument(include=["sqlite3"])
    async with stoppable.open_run("agent") as run:
        connection = connect()
        with pytest.raises(sqlite3.OperationalError):
            connection.execute("SELECT nothing")
        assert run.in_flight == ()
        connection.close()


def test_a_class_of_ones_own_is_left_alone():
    class Own(sqlite3.Connection):
        pass

    stoppable.instrument(include=["sqlite3"])
    connection = sqlite3.connect(":memory:", factory=Own)
    assert type(connection) is Own
    connection.close()


def test_nothing_is_left_of_it():
    stoppable.instrument(include=["sqlite3"])
    stoppable.uninstrument()
    connection = connect()
    assert type(connection) is sqlite3.Connection
    connection.close()

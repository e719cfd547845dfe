"""Statements of psycopg and asyncpg are boundaries if their packages are included."""

import asyncpg
import psycopg
import pytest

import stoppable


@pytest.fixture(autouse=True)
def instrumented():
    stoppable.instrument(include=["psycopg", "asyncpg"])
    yield
    stoppable.uninstrument()


@pytest.fixture
def table(server):
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS notes; CREATE TABLE notes (note text)")
        yield connection
        connection.execute("DROP TABLE notes")


INSERT = "INSERT INTO notes VALUES ('a note')"


def by_psycopg(url):
    with psycopg.connect(url) as connection:
        connection.execute(INSERT)
        stoppable.current_run().stop()
        connection.execute(INSERT)


async def by_async_psycopg(url):
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(INSERT)
        stoppable.current_run().stop()
        await connection.execute(INSERT)


async def by_asyncpg(url):
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(INSERT)
            stoppable.current_run().stop()
            await connection.execute(INSERT)
    finally:
        async with stoppable.shielded(30):
            await connection.close()


@pytest.mark.parametrize("agent", [by_psycopg, by_async_psycopg, by_asyncpg])
async def test_after_a_stop_no_statement_is_begun_and_the_transaction_is_rolled_back(server, table, agent):
    handle = await stoppable.spawn(agent, server.url)
    assert (await handle.outcome()).status == "stopped"
    assert table.execute("SELECT count(*) FROM notes").fetchone() == (0,)


async def test_a_statement_is_in_flight_with_its_first_word(server):
    async def agent():
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            await connection.execute("SELECT pg_sleep(600)")

    handle = await stoppable.spawn(agent)
    while not handle.run.in_flight:
        await stoppable.sleep(0.01)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("store:psycopg SELECT",)
    assert (await handle.outcome()).status == "stopped"

"""A stop goes through tenacity: a tool that is retried ends at its next boundary."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("tenacity")

from tenacity import RetryError, retry, retry_if_not_exception_type, stop_after_attempt, wait_fixed

import stoppable
from stoppable import AgentStopped, Status

ATTEMPTS = 4


def async_agent(trip, error=None, **options):
    @retry(stop=stop_after_attempt(ATTEMPTS), **options)
    async def tool():
        await trip.book_async()
        if error is not None:
            raise error

    async def agent():
        while await trip.turn_async("book a trip"):
            await tool()

    return agent


def blocking_agent(trip, error=None, **options):
    @retry(stop=stop_after_attempt(ATTEMPTS), **options)
    def tool():
        trip.book()
        if error is not None:
            raise error

    def agent():
        while trip.turn("book a trip"):
            tool()

    return agent


both_kinds = pytest.mark.parametrize("kind", [async_agent, blocking_agent])


@both_kinds
async def test_the_tool_in_flight_finishes_and_its_next_boundary_is_not_retried(new_trip, kind):
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_in_flight(kind(trip))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (1, ["flight"])


@both_kinds
async def test_when_the_attempt_in_flight_fails_the_next_attempt_has_no_effect(new_trip, kind):
    trip = new_trip("flight")
    stopped = await trip.stop_in_flight(kind(trip, ConnectionError("the airline hung up")))
    await stopped.came_through("tool:flight")
    assert (trip.calls, trip.effects) == (2, ["flight"])


async def test_a_stop_ends_the_wait_between_attempts_at_once_if_tenacity_sleeps_with_stoppable(new_trip):
    trip = new_trip("flight", hold="nothing")
    waiting = asyncio.Event()
    agent = async_agent(
        trip,
        ConnectionError("the airline hung up"),
        wait=wait_fixed(3600),
        sleep=stoppable.sleep,
        before_sleep=lambda state: waiting.set(),
    )
    handle = await trip.start(agent)
    async with asyncio.timeout(30):
        await waiting.wait()
    await handle.stop(reason="no more attempts")
    assert (await trip.end(handle)).status is Status.STOPPED
    assert type(trip.escaped) is AgentStopped
    assert (len(trip.prompts), trip.calls, trip.effects) == (1, 1, ["flight"])


@both_kinds
async def test_a_retry_of_everything_retries_the_stop_too_but_buys_no_effect(new_trip, kind):
    # This predicate, unlike the default one, also matches what is no Exception.
    trip = new_trip("flight", "hotel")
    stopped = await trip.stop_in_flight(kind(trip, retry=retry_if_not_exception_type(ValueError)))
    assert (trip.calls, trip.effects) == (ATTEMPTS, ["flight"])
    assert isinstance(trip.escaped, RetryError)
    assert stopped.outcome.status is Status.STOPPED
    assert stopped.outcome.error is trip.escaped


@both_kinds
async def test_a_stop_that_is_an_exception_is_retried_to_the_last_attempt(new_trip, kind):
    trip = new_trip("flight", "hotel", stop_is_exception=True)
    await trip.stop_in_flight(kind(trip))
    assert isinstance(trip.escaped, RetryError)
    assert (trip.calls, trip.effects) == (ATTEMPTS, ["flight"])

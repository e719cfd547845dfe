"""What agents take is told as JSON Schema, and an input of another type is refused before a run is started."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import stoppable
from stoppable import InvalidArgument
from stoppable.server.hosted_agents import Signature

from .serving import client_of, over, served


@dataclasses.dataclass
class Place:
    city: str
    zip: int | None = None


class Client:
    """Has no JSON form."""


@stoppable.agent
async def research(question: str, steps: int = 10, *, depth: float = 0.5, fast: bool = False, places: list[Place] = ()):
    """Look something up."""
    return [question, steps, depth, fast, places]


def schema_of(function):
    return Signature(function).schema


def refused(function, arguments):
    with pytest.raises(InvalidArgument) as error:
        Signature(function).check(arguments)
    return str(error.value)


def test_a_signature_is_told_as_a_schema():
    told = schema_of(research.__wrapped__)
    assert told["type"] == "object"
    assert told["required"] == ["question"]
    assert told["additionalProperties"] is False
    assert told["properties"]["question"] == {"type": "string"}
    assert told["properties"]["steps"] == {"type": "integer", "default": 10}
    assert told["properties"]["depth"] == {"type": "number", "default": 0.5}
    assert told["properties"]["fast"] == {"type": "boolean", "default": False}
    assert told["properties"]["places"] == {"type": "array", "items": {"$ref": "#/$defs/Place"}}
    assert told["$defs"]["Place"]["required"] == ["city"]


def test_what_says_nothing_of_its_type_takes_anything():
    def agent(value, client: Client, unknown: NotThere, any_: Any = None, *more, **options):  # noqa: F821
        pass

    told = schema_of(agent)
    assert told["properties"] == {"value": {}, "client": {}, "unknown": {}, "any_": {"default": None}}
    assert told["additionalProperties"] is True
    Signature(agent).check({"value": {}, "client": 1, "unknown": [], "any_": "x", "more_of_it": 5})


def test_what_was_bound_is_not_asked_for_again():
    told = schema_of(functools.partial(research.__wrapped__, "tides", fast=True))
    assert told["required"] == []
    assert "question" not in told["properties"]


def test_the_schema_of_a_function_without_a_signature_says_nothing():
    assert schema_of(min)["properties"] == {}
    Signature(min).check([1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"question": "x", "steps": "many"}, "input.steps: Input should be a valid integer"),
        ({"question": "x", "steps": True}, "input.steps: Input should be a valid integer"),
        ({"question": "x", "steps": 1.5}, "input.steps: Input should be a valid integer"),
        ({"question": 5}, "input.question: Input should be a valid string"),
        ({"question": None}, "input.question: Input should be a valid string"),
        ({"question": "x", "places": [{"zip": 1}]}, "input.places.0.city: Field required"),
        (5, "input: Input should be a valid string"),
    ],
)
def test_an_input_of_another_type_is_refused(given, message):
    assert message in refused(research.__wrapped__, given)


def test_several_errors_are_told_together_and_not_the_values():
    told = refused(research.__wrapped__, {"question": 7123, "steps": "secret", "fast": "yes"})
    assert told.count("input.") == 3
    assert "secret" not in told
    assert "7123" not in told


@pytest.mark.parametrize(
    "given",
    [
        {"question": "x"},
        {"question": "x", "steps": 3.0},  # JSON has one kind of numbers
        {"question": "x", "steps": 2**70},
        {"question": "x", "depth": 1},
        {"question": "x", "places": [{"city": "Oslo"}, {"city": "Rome", "zip": None}]},
        "x",
    ],
)
def test_an_input_that_fits_is_not_refused(given):
    Signature(research.__wrapped__).check(given)


def test_types_with_a_json_form_are_checked_by_it():
    def agent(
        when: dt.date,
        how: Literal["fast", "slow"],
        many: Annotated[int, Field(gt=0)],
        some: str = None,  # noqa: RUF013 - many write it so
    ):
        pass

    fits = {"when": "2026-11-16", "how": "fast", "many": 3, "some": None}
    Signature(agent).check(fits)
    assert "input.when" in refused(agent, {**fits, "when": "some day"})
    assert "'fast' or 'slow'" in refused(agent, {**fits, "how": "soon"})
    assert "greater than 0" in refused(agent, {**fits, "many": 0})


def test_a_type_whose_own_check_raises_refuses():
    class Odd:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_):
            from pydantic_core import core_schema

            def fail(value):
                raise RuntimeError("no")

            return core_schema.no_info_after_validator_function(fail, core_schema.str_schema())

    def agent(value):
        pass

    agent.__annotations__["value"] = Odd
    assert "could not be checked: RuntimeError" in refused(agent, {"value": "x"})


async def test_over_http_a_wrong_input_is_422_and_no_run():
    with served([research]) as service:
        async with client_of(service) as client:
            agents = (await client.get("/agents")).json()["agents"]
            assert agents[0]["input"]["properties"]["steps"] == {"type": "integer", "default": 10}
            wrong = await client.post("/runs", json={"agent": "research", "input": {"question": "x", "steps": "many"}})
            assert wrong.status_code == 422
            assert wrong.json()["error"] == {
                "code": "invalid_argument",
                "message": "input.steps: Input should be a valid integer",
            }
            assert (await client.get("/runs")).json()["runs"] == []
            given = {"question": "x", "steps": 2, "places": [{"city": "Oslo"}]}
            right = await client.post("/runs", json={"agent": "research", "input": given})
            record = await over(client, right.json()["id"])
            assert record["outcome"]["result"] == ["x", 2, 0.5, False, [{"city": "Oslo"}]]

"""Records go through JSON and come back the same; nothing an agent returns can break that."""

import dataclasses
import datetime as dt
import enum
import itertools
import json
import math
import types
import typing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import stoppable
from stoppable import InvalidArgument, _json, records
from stoppable._core.stop import Receipt, ReceiptEntry
from stoppable._core.values import Limits, Policy, Reason
from stoppable.stores import base

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
SECONDS = st.floats(0, 1e6)
KEPT = [
    kind
    for module in (records, base)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == module.__name__
    if kind is not records.StopRequest  # passed to stores, which keep what it asks for
]
KINDS = [*KEPT, Limits, ReceiptEntry, Policy, Reason, Receipt]


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that a field with this type may hold."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.none() | st.one_of([values(arg) for arg in args if arg is not types.NoneType])
    if origin in (tuple, frozenset):
        return st.lists(values(args[0]), max_size=3).map(origin)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(TEXT, values(args[1]), max_size=3)
    if hint is Any:
        return JSON
    if issubclass(hint, enum.StrEnum):
        return st.sampled_from(list(hint))
    if dataclasses.is_dataclass(hint):
        return made(hint)
    return {
        str: TEXT,
        bool: st.booleans(),
        int: st.integers(0, 2**60),
        float: st.floats(allow_nan=False, allow_infinity=False),
    }[hint]


def made(kind: type) -> st.SearchStrategy[Any]:
    if kind is Policy:
        return st.builds(Policy, grace=SECONDS, interrupt=SECONDS, cancel=SECONDS, kill=SECONDS)
    if kind is Limits:
        counts = st.dictionaries(TEXT, st.integers(0, 1000), max_size=2)
        return st.builds(Limits, seconds=st.none() | SECONDS, boundaries=counts)
    hints = typing.get_type_hints(kind)
    fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(kind)}
    if kind is records.Selector:
        fields["all"] = st.just(True)  # else it may be empty, which it refuses to be
    return st.builds(kind, **fields)


def test_every_record_is_tried():
    assert {"RunRecord", "Event", "Draft", "Hold", "AuditEntry", "StopResult", "Filter", "Intent"} <= {
        kind.__name__ for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_goes_through_json_and_comes_back_the_same(kind):
    @settings(max_examples=25, deadline=None)
    @given(made(kind))
    def there_and_back(value):
        text = json.dumps(records.to_json(value), allow_nan=False)
        assert _json.load(kind, json.loads(text)) == value

    there_and_back()


def test_names_are_in_camel_case_on_the_wire():
    form = records.to_json(records.RunRecord(id="a", name="x", on_disconnect="stop", labels={"snake_case": "kept"}))
    assert (form["onDisconnect"], form["rootId"], form["parentId"], form["stopRequestedAt"]) == (
        "stop",
        "a",
        None,
        None,
    )
    assert form["labels"] == {"snake_case": "kept"}
    assert form["policy"]["grace"] == 10.0


def test_what_a_newer_stoppable_added_is_ignored_and_what_an_older_left_out_has_its_default():
    record = records.run_from_json({"id": "a", "name": "x", "colour": "red"})
    assert record == records.RunRecord(id="a", name="x")


def test_a_record_of_a_newer_version_is_refused():
    with pytest.raises(InvalidArgument, match="upgrade stoppable"):
        records.run_from_json({"id": "a", "name": "x", "version": records.VERSION + 1})


def test_an_empty_selector_is_refused():
    with pytest.raises(InvalidArgument, match="all=True"):
        records.Selector()


# What agents return


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    at: dt.date


class Model:
    """As pydantic's."""

    def model_dump(self, mode):
        return {"mode": mode}


@given(JSON)
def test_what_is_json_already_is_kept(value):
    assert _json.plain(value, 1_000_000) == (value, None)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), "2026-01-02T03:04:00+00:00"),
        (dt.time(3, 4), "03:04:00"),
        (Colour.RED, "red"),
        (Point(1, dt.date(2026, 1, 2)), {"x": 1, "at": "2026-01-02"}),
        (Model(), {"mode": "json"}),
        ({1}, [1]),
        (frozenset({"a"}), ["a"]),
        (b"text", "text"),
        ((1, (2,)), [1, [2]]),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        ({1: "a", None: "b", False: "c", 1.5: "d"}, {"1": "a", "null": "b", "false": "c", "1.5": "d"}),
        ([Colour.RED, {"deep": Point(2, dt.date(2026, 1, 2))}], ["red", {"deep": {"x": 2, "at": "2026-01-02"}}]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_have_a_json_form_get_it(value, form):
    assert _json.plain(value, 1000) == (form, None)


@given(
    st.dictionaries(st.text() | st.sampled_from(["\ud83d", "é"]), JSON | st.floats() | st.sampled_from(["\ud83d"]))
    | st.text(),
    st.sampled_from([600, 700, 10_000]),
)
def test_a_value_that_is_seen_to_be_json_gets_the_form_that_writing_it_gives(value, limit):
    """A token of a model is not written and read again to be kept; anything else is."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        expected = json.loads(text) if len(text.encode()) <= limit else None
    except ValueError:  # NaN, or half a surrogate pair
        assert not _json._is_token(value, limit)
        return
    form, why = _json.plain(value, limit)
    assert (form, why is None) == (expected, expected is not None)
    assert form is not value or isinstance(value, str), "what the agent changes later is not in the log"


def test_half_a_surrogate_pair_is_replaced_and_the_rest_is_kept():
    """G11: a text that was cut in the middle of an emoji; UTF-8 has no form for half of one."""
    cut, whole = "stop \ud83d", "stop \ud83d\uded1"
    form, why = _json.plain({"cut": [cut], cut: whole}, 1000)
    assert why is None
    assert form == {"cut": ["stop �"], "stop �": "stop \U0001f6d1"}
    assert json.dumps(form, ensure_ascii=False).encode()
    assert _json.plain(cut, 1000) == ("stop �", None)


def cycle():
    around: list[Any] = []
    around.append(around)
    return around


def nested(depth: int, wrap=lambda inner: [inner]):
    value: Any = None
    for _ in range(depth):
        value = wrap(value)
    return value


class Endless:
    def model_dump(self, mode):
        return Endless()


class BadIter(set):
    def __iter__(self):
        raise ZeroDivisionError("iter")


class EndlessList(list):
    def __iter__(self):
        return itertools.count()


class BadItems(dict):
    def items(self):
        raise ZeroDivisionError("items")


class BadRepr:
    def __repr__(self):
        raise ZeroDivisionError("repr")


class BadText(Exception):
    def __str__(self):
        raise ZeroDivisionError("str")


class BadName(type):
    @property
    def __name__(cls):
        raise ZeroDivisionError("name")


class Nameless(metaclass=BadName):
    pass


class BadDump:
    def __init__(self, error):
        self.error = error

    def model_dump(self, mode):
        raise self.error


class BadClass:
    @property
    def __class__(self):
        raise ZeroDivisionError("class")


class BadAttribute:
    def __getattribute__(self, name):
        raise ZeroDivisionError(name)


# Made in the test: pytest would look at them.
HOSTILE = {
    "a cycle": (cycle, "has no end"),
    "nan": (lambda: math.nan, "ValueError"),
    "infinity": (lambda: [math.inf], "ValueError"),
    "a key that is nan": (lambda: {math.nan: 1}, "ValueError"),
    "an integer of 5000 digits": (lambda: 10**5000, "ValueError"),
    "a key that is a tuple": (lambda: {(1, 2): 3}, "TypeError"),
    "bytes that are no text": (lambda: b"\xff", "UnicodeDecodeError"),
    "an object": (object, "object is not one of the types"),
    "a class": (lambda: Colour, "is not one of the types"),
    "an iterator": (lambda: iter([1]), "is not one of the types"),
    "lists 100000 deep": (lambda: nested(100_000), "RecursionError"),
    "dicts 100000 deep": (lambda: nested(100_000, lambda inner: {"deep": inner}), "RecursionError"),
    "a model of models without end": (Endless, "RecursionError"),
    "a list without end": (EndlessList, "has no end"),
    "a set whose __iter__ raises": (lambda: BadIter({1}), "iter"),
    "a dict whose items() raises": (lambda: BadItems({1: 2}), "items"),
    "an object whose __repr__ raises": (BadRepr, "BadRepr"),
    "an object whose class has no name": (Nameless, "unknown"),
    "a model_dump that raises": (lambda: BadDump(ValueError("dump")), "dump"),
    "an error whose __str__ raises": (lambda: BadDump(BadText()), "it cannot be shown"),
    "a model_dump that exits": (lambda: BadDump(SystemExit(3)), "SystemExit"),
    "a model_dump that stops": (lambda: BadDump(stoppable.AgentStopped("a", Reason())), "AgentStopped"),
    "an object whose __class__ raises": (BadClass, "ZeroDivisionError"),
    "an object whose attributes raise": (BadAttribute, "ZeroDivisionError"),
    "a dataclass with one of them inside": (lambda: Point(1, BadDump(ValueError("deep"))), "deep"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_value_without_a_json_form_says_why_and_raises_nothing(what):
    make, why = HOSTILE[what]
    form, reason = _json.plain(make(), 1_000_000)
    assert form is None
    assert why in reason
    assert len(reason) <= 500
    assert reason.encode()


def test_no_depth_of_nesting_can_make_it_raise():
    """Also the depth that can be written and not be read again."""
    for depth in range(1, 2000, 25):
        form, reason = _json.plain(nested(depth), 1_000_000)
        assert (form is None) == (reason is not None)


def test_ctrl_c_is_not_the_values():
    with pytest.raises(KeyboardInterrupt):
        _json.plain(BadDump(KeyboardInterrupt()), 100)


def test_what_looks_like_ctrl_c_is_the_values_where_no_user_can_press_it():
    with ThreadPoolExecutor(1) as threads:
        form, reason = threads.submit(_json.plain, BadDump(KeyboardInterrupt()), 100).result()
    assert (form, "KeyboardInterrupt" in reason) == (None, True)


@pytest.mark.parametrize(
    ("value", "is_so"),
    [
        (None, True),
        ({"a": [1, 2.5, ("x", True)]}, True),
        (enum.StrEnum("Kind", ["A"]).A, False),
        ([{"a": dt.date(2024, 1, 1)}], False),
        ({enum.StrEnum("Kind", ["A"]).A: 1}, False),
        ([0] * 100_000, False),
    ],
)
def test_a_value_is_plain_if_it_is_made_of_a_few_of_jsons_own_types(value, is_so):
    assert _json.is_plain(value) == is_so


def test_few_objects_whose_json_is_long_are_not_plain():
    value = "ha"
    for _ in range(40):
        value = [value] * 10
    assert not _json.is_plain(value)


@given(JSON, st.integers(0, 60))
def test_the_limit_is_in_bytes_of_json(value, limit):
    size = len(json.dumps(value, ensure_ascii=False).encode())
    assume(abs(size - limit) < 30)
    form, reason = _json.plain(value, limit)
    assert (reason is None) == (size <= limit)
    if reason is not None:
        assert form is None
        assert "limit" in reason


@dataclasses.dataclass
class Ten:
    inner: Any


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner] * 10,
        lambda inner: {str(number): inner for number in range(10)},
        lambda inner: Ten([inner] * 10),
        lambda inner: types.SimpleNamespace(model_dump=lambda mode: [inner] * 10),
    ],
    ids=["lists", "dicts", "dataclasses", "models"],
)
def test_few_objects_whose_json_is_longer_than_any_memory_are_refused_in_time(wrap):
    value = "ha"
    for _ in range(40):
        value = wrap(value)
    form, reason = _json.plain(value, 10_000)
    assert form is None
    assert "limit" in reason


def test_long_numbers_count_as_what_they_are():
    assert _json.plain([10**4000] * 1_000_000, 1_000_000)[0] is None

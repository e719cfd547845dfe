"""What an adapter needs of a package is found by its path, and what a version lacks is named."""

import importlib.metadata
import json

import pytest

from stoppable.adapters import _upstream

ENCODE = "json:JSONEncoder.encode"


def test_a_path_names_a_module_and_what_is_in_it():
    assert _upstream.find(ENCODE) is json.JSONEncoder.encode
    for path in ("json:nothing", "json:JSONEncoder.nothing", "json.nowhere:dumps", "nowhere:dumps"):
        assert _upstream.find(path) is None


@pytest.mark.parametrize("parameters", [(), ("self",), ("self", "o"), ("self", ..., "o"), (..., "o")])
def test_what_is_as_needed_is_not_missing(parameters):
    assert _upstream.missing({ENCODE: parameters}) == []


@pytest.mark.parametrize("parameters", [("o",), ("o", "self"), ("self", "other"), ("self", ..., "other")])
def test_a_function_with_other_parameters_is_missing(parameters):
    assert _upstream.missing({ENCODE: parameters}) == [ENCODE]


def test_what_is_gone_is_missing():
    functions = {"json:gone": (), "json.gone:dumps": ("self",), "json:__doc__": ("self",)}
    assert _upstream.missing(functions) == [*functions]


def test_a_line_that_a_module_lacks_is_missing():
    texts = {"json.decoder": ("self.memo = ", "self.gone = "), "json.gone": ("def dumps(",), "_json": ("scanner",)}
    assert _upstream.missing({}, texts) == ["json.decoder:self.gone", "json.gone:def dumps", "_json:scanner"]


def test_a_version_that_lacks_something_is_refused_with_its_name():
    _upstream.require("pytest", [])
    version = importlib.metadata.version("pytest")
    with pytest.raises(
        RuntimeError, match=f"pytest {version} is not supported: it lacks json:gone, json:lost. Install"
    ):
        _upstream.require("pytest", ["json:gone", "json:lost"])


def test_a_method_is_replaced_once():
    class Owner:
        def method(self):
            """Say so."""
            return "real"

        @staticmethod
        def plain():
            return "real"

    def wrapper(real):
        return lambda *args: f"wrapped {real(*args)}"

    for _ in range(2):
        _upstream.wrap(Owner, "method", wrapper)
        _upstream.wrap(Owner, "plain", wrapper)
    assert (Owner().method(), Owner().plain(), Owner.plain()) == ("wrapped real",) * 3
    assert Owner.method.__doc__ == "Say so."
    assert _upstream.is_wrapped(Owner.method)

"""`make model` takes no search for a proof that is not one. These tests need no model checker."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("models_check", MODELS / "check.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


COMPLETE = "State-vector 108 byte, depth reached 185, errors: 0\n  1293269 states, stored\n"
CYCLE = "pan:1: acceptance cycle (at depth 75)\nWarning: Search not completed\nState-vector 76 byte, errors: 1\n"


def test_a_complete_search_without_errors_is_a_proof(check):
    assert check.judge(COMPLETE, 0) == "holds"


@pytest.mark.parametrize(
    "output",
    [
        "error: max search depth too small\n" + COMPLETE,
        "pan: reached -DMEMLIM bound\n" + COMPLETE,
        "pan: out of memory\n" + COMPLETE,
        "Warning: Search not completed\n" + COMPLETE,
        "pan: error: too many processes -- current max is 6 procs (-DNFAIR=2)\n",
        "",
    ],
)
def test_a_search_that_was_cut_short_proves_nothing(check, output):
    assert check.judge(output, 0).startswith("unknown")


def test_a_search_that_ends_with_an_error_code_proves_nothing(check):
    assert check.judge(COMPLETE, 1).startswith("unknown")


def test_a_counterexample_is_one_though_the_search_ends_with_it(check):
    assert check.judge(CYCLE, 0) == "violated"


@pytest.mark.parametrize("model", sorted(MODELS.glob("*.pml")), ids=lambda path: path.name)
def test_every_property_has_a_mutant_that_breaks_it(check, model):
    assert set(check.mutants(model).values()) == set(check.properties(model))


@pytest.mark.parametrize("model", sorted(MODELS.glob("*.pml")), ids=lambda path: path.name)
def test_every_model_has_a_process_that_never_waits(model):
    """Without one, the fair search would not see the runs that hang."""
    assert re.search(r"proctype World\(\) {\n    do\n    :: time\n    od\n}", model.read_text())

"""A run begins only where the stack has room for its end."""

import sys

import pytest

import stoppable
from stoppable._engine.source_lines import trace_of


def deeper(frames, function):
    return deeper(frames - 1, function) if frames else function()


def depth():
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


@pytest.fixture
def limit():
    """Ends the stack not far from here: a thousand frames would take longer."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth() + 300)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("limit")
def test_where_the_stack_is_about_to_end_no_run_begins():
    """Though the body of the inner one would take a single frame."""

    @stoppable.agent
    def inner():
        return "value"

    with stoppable.open_run("outer") as run:
        assert deeper(150, inner) == "value"
        with pytest.raises(RecursionError):
            deeper(270, inner)
        assert run.children == ()


@pytest.mark.usefixtures("limit")
def test_of_a_recursion_the_end_is_told_and_of_anything_else_all():
    def fail():
        raise KeyError("mine")

    for frames, is_whole in ((60, True), (150, False)):
        with pytest.raises(KeyError) as caught:
            deeper(frames, fail)
        trace = trace_of(caught.value)
        assert ("in test_of_a_recursion" in trace) is is_whole
        assert "in fail" in trace
        assert "KeyError: 'mine'" in trace

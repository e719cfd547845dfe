"""What the test tools themselves need."""

import math
import subprocess
import sys

import pytest

from stoppable import InvalidArgument
from stoppable.testing import FakeClock

ALONE = """
import sys
before = set(sys.modules)
import stoppable.testing
{then}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
assert {{name for name in new if not name.startswith("_")}} == {{"stoppable"}}, new
"""


def run_alone(then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE.format(then=then)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_tools_need_nothing_but_the_standard_library():
    run_alone("assert 'stoppable.testing.store_contract' not in sys.modules")


def test_the_contract_of_stores_needs_nothing_but_the_standard_library():
    run_alone("from stoppable.testing import DurableStoreContract, StoreClock, StoreContract")


def test_a_tool_that_is_not_there_is_an_attribute_error():
    run_alone("assert not hasattr(stoppable.testing, 'nothing')")


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, "1"])
def test_a_fake_clock_never_goes_back(seconds):
    with FakeClock() as clock:
        clock.advance(5)
        with pytest.raises(InvalidArgument, match="seconds"):
            clock.advance(seconds)
        assert clock.now() == 5

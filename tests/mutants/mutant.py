"""A deliberate mistake in src/stoppable, and the tests that must see it.

A snippet occurs exactly once in its file. When the code changes, change the snippet with it: a mutant that is no longer
applied proves nothing, and test_mutants.py says so.
"""

from dataclasses import dataclass

SPEC = "tests/spec/"
UNIT = "tests/unit/"
PLAIN = "tests/plain/"
FOUND = "tests/machine/test_regressions.py::"
GAPS = "tests/mutants/test_gaps.py::"
GENERATORS = "tests/unit/test_generators.py::TestCalledInARun::"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    breaks: str
    file: str
    snippet: str
    replacement: str
    caught_by: tuple[str, ...]
    the_machine_sees_it: bool = False
    """Whether the random lives of the state machine must come to it too; for those that nearly every life comes to."""
    machine: str = "tests/machine/test_tree_machine.py"

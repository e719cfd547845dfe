"""A toy store, written only from the guide, keeps the contract of stores."""

import ast
import re
from pathlib import Path

import pytest

from stoppable.testing import DurableStoreContract
from stoppable.testing.store_contract.shared_data import SharedDataContract

from .toy_store import ToyStore

GUIDE = Path(__file__).parents[2] / "docs/how-to/write-a-store.md"
TOY = "\n".join(Path(__file__).with_name(name).read_text() for name in ("toy_store.py", "toy_state.py"))


class TestToyStore(DurableStoreContract):
    events_kept = 300

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "runs.pickle"

    def make_store(self, clock):
        return ToyStore(self.path, clock, self.events_kept)

    another_store = make_store


class Unlocked(DurableStoreContract):
    """As a store is whose calls are safe only behind a lock of its own process."""

    def __init__(self, path):
        self.path = path

    def make_store(self, clock):
        return ToyStore(self.path, clock, locks=False)

    another_store = make_store


RACES = [name for name in vars(SharedDataContract) if name.startswith("test_")]


@pytest.mark.parametrize("race", RACES)
def test_a_store_without_locks_does_not_keep_the_contract(race, tmp_path):
    """Each race alone sees it."""
    contract = Unlocked(tmp_path / "runs.pickle")
    contract.setup_method()
    try:
        with pytest.raises(Exception):  # noqa: B017 - a run that is gone, a stop that is, a file in between
            getattr(contract, race)()
    finally:
        contract.teardown_method()


def test_the_guide_names_all_that_the_toy_uses_of_the_library():
    guide = GUIDE.read_text()
    for node in ast.walk(ast.parse(TOY)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoppable"):
            names = [f"`{node.module}`", *(f"`{node.module}.{alias.name}`" for alias in node.names)]
            assert any(name in guide for name in names), node.module
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rules":
            assert re.search(rf"\b{node.attr}\b", guide), f"rules.{node.attr}"
    assert "stoppable._" not in TOY

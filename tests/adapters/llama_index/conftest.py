"""Imports LlamaIndex before warnings are errors: its oldest version warns of the newest pydantic."""

import gc
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings(action="ignore"):
    import llama_index.core.agent.workflow  # noqa: F401

OURS = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Let no test fail because connections of an earlier one are collected in it: LlamaIndex never closes them."""
    for item in items:
        if item.path.is_relative_to(OURS):
            for kind in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


def pytest_sessionfinish():
    """Collect the connections of models, which LlamaIndex never closes: Python would warn of them at the end."""
    with warnings.catch_warnings(action="ignore"):
        gc.collect()

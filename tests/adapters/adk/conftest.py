"""Warnings of google-adk and of what it stands on are not ours to mend; all others stay errors."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOREIGN = [
    "ignore::DeprecationWarning:google",
    "ignore::UserWarning:google",
    "ignore::DeprecationWarning:authlib",
    r"ignore:\[EXPERIMENTAL\]",
    r"ignore:.*is deprecated in favor of Workflow:DeprecationWarning",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(line))

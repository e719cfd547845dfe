"""Installs the adapter once, as a program does."""

import pytest

from stoppable.adapters import autogen


@pytest.fixture(autouse=True)
def installed():
    autogen.install()

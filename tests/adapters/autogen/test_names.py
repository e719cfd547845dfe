"""What this adapter stands on in AutoGen; a version that changes one of these names fails here first."""

import pytest

from stoppable.adapters.autogen import install, names


def test_the_names_are_there():
    assert names.missing() == []


def test_a_version_without_one_of_them_is_named(monkeypatch):
    monkeypatch.setitem(names._FUNCTIONS, "autogen_core:CancellationToken.cancel_of_another_version", ("self",))
    with pytest.raises(RuntimeError, match=r"lacks autogen_core:CancellationToken.cancel_of_another_version"):
        install()


def test_a_version_without_an_attribute_is_named(monkeypatch):
    monkeypatch.setitem(names._ATTRIBUTES, "autogen_agentchat.agents._assistant_agent", ("self._other = ",))
    with pytest.raises(RuntimeError, match=r"lacks autogen_agentchat.agents._assistant_agent:self._other"):
        install()

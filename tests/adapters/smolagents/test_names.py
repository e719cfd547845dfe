"""What this adapter stands on in smolagents; a version that changes one of these names fails here first."""

import pytest

from stoppable.adapters.smolagents import install, names


def test_the_names_are_there():
    assert names.missing() == []


@pytest.mark.parametrize("name", ["smolagents.agents:MultiStepAgent.run_of_another_version", "smolagents.none:Tool"])
def test_a_version_without_one_of_them_is_named(monkeypatch, name):
    monkeypatch.setitem(names._FUNCTIONS, name, ("self",))
    with pytest.raises(RuntimeError, match=rf"lacks {name}"):
        install()


@pytest.mark.parametrize("module", ["smolagents.agents", "smolagents.none"])
def test_a_version_without_a_line_is_named(monkeypatch, module):
    monkeypatch.setitem(names._TEXTS, module, ("yield another_step",))
    with pytest.raises(RuntimeError, match=rf"lacks {module}:yield another_step"):
        install()

"""What this adapter stands on in Strands; a version that changes one of these names fails here first."""

import pytest

from stoppable.adapters.strands import install, names


def test_the_names_are_there():
    assert names.missing() == []


def test_a_version_without_one_of_them_is_named(monkeypatch):
    monkeypatch.setitem(names._FUNCTIONS, "strands:Agent.stream_async_of_another_version", ("self",))
    with pytest.raises(RuntimeError, match=r"lacks strands:Agent.stream_async_of_another_version"):
        install()


def test_a_version_without_a_parameter_is_named(monkeypatch):
    monkeypatch.setitem(names._FUNCTIONS, "strands:Agent.stream_async", ("self", "other_signal"))
    with pytest.raises(RuntimeError, match=r"lacks strands:Agent.stream_async"):
        install()


def test_a_version_without_an_attribute_is_named(monkeypatch):
    monkeypatch.setitem(names._ATTRIBUTES, "strands.agent.agent", ("self._other = ",))
    with pytest.raises(RuntimeError, match=r"lacks strands.agent.agent:self._other"):
        install()


def test_a_version_without_a_stage_is_named(monkeypatch):
    monkeypatch.setattr(names, "TOOL_STAGE", None)
    with pytest.raises(RuntimeError, match=r"lacks strands.middleware:ExecuteToolStage"):
        install()

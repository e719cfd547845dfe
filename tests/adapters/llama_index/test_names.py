"""What this adapter stands on in LlamaIndex; a version that changes one of these names fails here first."""

import pytest

from stoppable.adapters.llama_index import install, names


def test_the_names_are_there():
    assert names.missing() == []


def test_a_version_without_one_of_them_is_named(monkeypatch):
    monkeypatch.setitem(names._FUNCTIONS, "workflows:Workflow.run_of_another_version", ("self",))
    with pytest.raises(RuntimeError, match=r"lacks workflows:Workflow.run_of_another_version"):
        install()


def test_a_version_without_an_attribute_is_named(monkeypatch):
    monkeypatch.setitem(names._ATTRIBUTES, "workflows.handler", ("self._other = ",))
    with pytest.raises(RuntimeError, match=r"lacks workflows.handler:self._other"):
        install()

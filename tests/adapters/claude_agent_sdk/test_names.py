"""What this adapter stands on in the Claude Agent SDK; a version that changes one of these names fails here first."""

import pytest

from stoppable.adapters.claude_agent_sdk import install, names

QUERY = "claude_agent_sdk._internal.query"


def test_the_names_are_there():
    assert names.missing() == []


@pytest.mark.parametrize("name", [f"{QUERY}:Query.of_another_version", "claude_agent_sdk.none:Query"])
def test_a_version_without_one_of_them_is_named(monkeypatch, name):
    monkeypatch.setitem(names._FUNCTIONS, name, ("self",))
    with pytest.raises(RuntimeError, match=rf"lacks {name}"):
        install()


@pytest.mark.parametrize("module", [QUERY, "claude_agent_sdk.none"])
def test_a_version_without_a_line_is_named(monkeypatch, module):
    monkeypatch.setitem(names._TEXTS, module, ("yield another_message",))
    with pytest.raises(RuntimeError, match=rf"lacks {module}:yield another_message"):
        install()

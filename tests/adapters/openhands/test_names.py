"""What this adapter stands on in openhands; a version that changes one of these names fails here first."""

import inspect

import pytest
from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.conversation.state import ConversationState

from stoppable.adapters.openhands import calls, names, patches


def test_the_names_are_there():
    assert names.missing() == []


@pytest.mark.parametrize("name", sorted(names._SIGNATURES))
def test_a_version_without_one_of_them_is_named(monkeypatch, name):
    owner, attribute, _ = names._SIGNATURES[name]
    monkeypatch.setitem(names._SIGNATURES, name, (owner, f"{attribute}_of_another_version", ()))
    monkeypatch.setattr(patches, "_is_active", False)
    with pytest.raises(RuntimeError, match=f"lacks .*{name}"):
        patches.activate()


def test_the_attributes_that_nothing_else_shows():
    source = inspect.getsource(LocalConversation)
    assert "self._on_event = " in source
    assert "self._max_workers = " in inspect.getsource(names._SIGNATURES["ParallelToolExecutor._run_safe"][0])
    assert isinstance(ConversationState.get_unmatched_actions([]), list)


def test_the_names_that_cancel_mcp_calls_are_there():
    assert names.missing_for_mcp() == []


def test_an_mcp_package_without_them_is_named_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(names, "MCP_SESSION", None)
    calls.wrap_mcp_client()
    assert "BaseSession.send_request" in caplog.text

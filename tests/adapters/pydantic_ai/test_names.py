"""What this adapter stands on in Pydantic AI; a version that changes one of these names fails here first."""

import pytest
from pydantic_ai.models import StreamedResponse

from stoppable.adapters.pydantic_ai import Stoppable, names


def test_the_names_are_there():
    assert names.missing() == []


def test_a_version_without_one_of_them_is_refused_with_its_name(monkeypatch):
    monkeypatch.delattr(StreamedResponse, "_get_event_iterator")
    with pytest.raises(RuntimeError, match=r"lacks pydantic_ai.models:StreamedResponse._get_event_iterator"):
        Stoppable()

"""What this adapter stands on in CrewAI; a version that changes one of these names fails here first."""

import pytest

from stoppable.adapters.crewai import install, names


def test_the_names_are_there():
    assert names.missing() == []


@pytest.mark.parametrize("name", ["crewai.crew:Crew.kickoff_of_another_version", "crewai.none:Crew"])
def test_a_version_without_one_of_them_is_named(monkeypatch, name):
    monkeypatch.setitem(names._FUNCTIONS, name, ("self",))
    with pytest.raises(RuntimeError, match=rf"lacks {name}"):
        install()


@pytest.mark.parametrize("name", ["crewai.task:Task.execute_sync", "crewai.crew:Crew", "crewai.none:Crew"])
def test_a_version_without_a_line_is_named(monkeypatch, name):
    monkeypatch.setitem(names._TEXTS, name, ("yield another_step",))
    with pytest.raises(RuntimeError, match=rf"lacks {name.partition(':')[0]}:yield another_step"):
        install()

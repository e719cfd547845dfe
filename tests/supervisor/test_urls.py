"""Which store a URL means: nothing in it is passed over in silence."""

import pytest

from stoppable import InvalidArgument, Supervisor

FULL, NORMAL = 2, 1  # PRAGMA synchronous


@pytest.mark.parametrize(
    ("query", "expected"), [("", FULL), ("?synchronous=full", FULL), ("?synchronous=normal", NORMAL)]
)
def test_a_url_says_how_its_file_is_synchronised(tmp_path, query, expected):
    store = Supervisor(f"sqlite:///{tmp_path}/runs.db{query}").store
    store.open()
    try:
        assert store.path == tmp_path / "runs.db"
        assert store._engine._writes.pragma("synchronous") == expected
    finally:
        store.close()


@pytest.mark.parametrize(
    "rest", ["?synchronous=off", "?synchronous=normal&mode=ro", "?mode=ro", "?normal", "#x", "?synchronous=normal#x"]
)
def test_what_a_file_does_not_know_is_refused_with_what_it_does(rest):
    with pytest.raises(InvalidArgument, match=r"synchronous=full or \?synchronous=normal"):
        Supervisor(f"sqlite:///runs.db{rest}")


@pytest.mark.parametrize("rest", ["?synchronous=normal", "#x", "name", "/runs.db"])
def test_memory_takes_nothing_more(rest):
    with pytest.raises(InvalidArgument, match="memory:// and nothing more"):
        Supervisor(f"memory://{rest}")


def test_a_question_mark_in_a_path_is_written_as_percent_3f(tmp_path):
    assert Supervisor(f"sqlite:///{tmp_path}/a%3Fb%23c.db").store.path == tmp_path / "a?b#c.db"

"""Which store a URL means: nothing in it is passed over in silence."""

import importlib

import pytest

from stoppable import InvalidArgument, Supervisor
from stoppable.stores import register_store, urls
from stoppable.stores.memory import MemoryStore

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
    with pytest.raises(InvalidArgument, match="use memory://"):
        Supervisor(f"memory://{rest}")


def test_a_question_mark_in_a_path_is_written_as_percent_3f(tmp_path):
    assert Supervisor(f"sqlite:///{tmp_path}/a%3Fb%23c.db").store.path == tmp_path / "a?b#c.db"


# Stores of others


class OtherStore(MemoryStore):
    def __init__(self, url):
        super().__init__()
        self.url = url


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(urls, "_registered_factories", {})


async def test_a_scheme_can_mean_a_store_of_ones_own(registry):
    register_store("toy", OtherStore)
    async with Supervisor("toy://somewhere?x=1") as supervisor:
        assert supervisor.store.url == "toy://somewhere?x=1"
        assert await (await supervisor.start(lambda: 1)).result() == 1


@pytest.mark.parametrize("scheme", ["sqlite", "memory", "", "Toy", "to y", "7"])
def test_a_scheme_that_is_ours_or_none_is_refused(registry, scheme):
    with pytest.raises(InvalidArgument, match=r"reserved|not a URL scheme"):
        register_store(scheme, OtherStore)


def installed(folder, package, *lines):
    """Make a folder hold what an installed package says about itself."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[stoppable.stores]", *lines]))


def test_a_package_names_its_store_by_an_entry_point(registry, tmp_path, monkeypatch):
    (tmp_path / "toy_store_of_a_package.py").write_text(
        "from stoppable.stores.memory import MemoryStore\n"
        "def from_url(url):\n    store = MemoryStore()\n    store.url = url\n    return store\n"
    )
    installed(tmp_path, "toystore", "toyp = toy_store_of_a_package:from_url")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Supervisor("toyp://here").store.url == "toyp://here"
    with pytest.raises(InvalidArgument, match=r"unknown kind of store.*toyp"):
        Supervisor("unknown://here")
    installed(tmp_path, "othertoys", "toyp = other:from_url")
    importlib.invalidate_caches()
    with pytest.raises(InvalidArgument, match="several packages"):
        Supervisor("toyp://here")


@pytest.mark.parametrize("url", ["", "runs.db", "/var/runs.db", "postgres", "://x"])
def test_what_is_no_url_is_refused_with_what_is(registry, url):
    with pytest.raises(InvalidArgument, match=r"sqlite:///runs\.db"):
        Supervisor(url)

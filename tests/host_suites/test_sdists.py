"""The tests of a package are those of the installed version."""

import tarfile

import pytest

from . import sdists

BACKEND = """
import pathlib

def prepare_metadata_for_build_wheel(directory, settings=None):
    folder = pathlib.Path(directory, "some_package-{version}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(pathlib.Path("PKG-INFO").read_text())
    return folder.name
"""


def add(folder, version):
    """Add a source distribution that needs nothing to be built."""
    source = folder.parent / f"some_package-{version}"
    source.mkdir()
    (source / "PKG-INFO").write_text(f"Metadata-Version: 2.2\nName: some-package\nVersion: {version}\n")
    (source / "backend.py").write_text(BACKEND.format(version=version))
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    with tarfile.open(folder / f"{source.name}.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)


@pytest.fixture
def index(tmp_path, monkeypatch):
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for version in ("1.0", "2.0"):
        add(folder, version)
    return folder


@pytest.fixture
def install(monkeypatch):
    def install(version):
        # Installing a package that was made up would need an environment of its own; the rest is real.
        monkeypatch.setattr(sdists, "_installed_version", {"some-package": version}.get)

    return install


def version_in(environment):
    assert [path.name for path in environment.iterdir()] == ["some-package"], "nothing else is left behind"
    return sdists._version_of(environment / "some-package")


def test_the_source_distribution_is_that_of_the_installed_version(index, install, tmp_path):
    environment = tmp_path / "environment"
    environment.mkdir()
    install("1.0")
    sdists.bring("some-package", environment)
    assert version_in(environment) == "1.0"
    install("2.0")
    sdists.bring("some-package", environment)
    assert version_in(environment) == "2.0"


def test_what_is_there_is_not_downloaded_again(index, install, tmp_path):
    environment = tmp_path / "environment"
    environment.mkdir()
    install(None)
    sdists.bring("some-package", environment)
    assert version_in(environment) == "2.0", "the newest one of a package that is not installed"
    for archive in index.iterdir():
        archive.unlink()
    for version in (None, "2.0"):
        install(version)
        sdists.bring("some-package", environment)
    assert version_in(environment) == "2.0"

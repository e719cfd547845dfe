"""Brings the source distributions of packages into the folder of this environment: they have tests, wheels do not.

    python -m tests.host_suites.sdists PACKAGE...

Each is of the installed version, and stays until another version is installed. One that is not installed is the newest.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path


def bring(package: str, environment: Path) -> None:
    """Download and unpack a source distribution, unless it is there."""
    folder, version = environment / package, _installed_version(package)
    if folder.is_dir() and version in {None, _version_of(folder)}:
        return
    wanted = package if version is None else f"{package}=={version}"
    with tempfile.TemporaryDirectory(dir=environment) as scratch:
        options = ["-q", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "--dest", scratch]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(scratch, filter="data")
        (unpacked,) = (path for path in Path(scratch).iterdir() if path.is_dir())
        if folder.is_dir():
            folder.rename(Path(scratch, "before"))
        unpacked.rename(folder)


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _version_of(folder: Path) -> str | None:
    about = folder / "PKG-INFO"
    return metadata.PathDistribution(folder).version if about.exists() else None


if __name__ == "__main__":
    for name in sys.argv[1:]:
        bring(name, Path(sys.prefix))

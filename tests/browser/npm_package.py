"""The npm package as users get it: packed, unpacked beside a React, bundled by esbuild and checked by tsc."""

import contextlib
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".venv-node"
TOOLS = NODE / "node_modules/.bin"
VERSIONS = (18, 19)
PATIENCE = 500  # seconds: tsc takes a hundred times as long on a busy machine
SOURCE = "src/stoppable/server/ui/stoppable-button.js"

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="NO NPM: it is not installed")
is_slow = pytest.mark.timeout(600)  # the package is made for the first test of a file
needs_react = pytest.mark.skipif(
    not all((NODE / f"react-{version}/node_modules/react").is_dir() for version in VERSIONS),
    reason="NO REACT: `make test-ui` installs it where npm is",
)


def call(*command, cwd):
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def pack(folder):
    """Pack a copy, because the scripts of the package write beside it; return the archive."""
    package = folder / "js/stoppable-button"
    shutil.copytree(ROOT / "js/stoppable-button", package)
    (folder / SOURCE).parent.mkdir(parents=True)
    shutil.copy(ROOT / SOURCE, folder / SOURCE)
    shutil.copy(ROOT / "LICENSE", folder)
    before = sorted(package.iterdir())
    [packed] = json.loads(call("npm", "pack", "--json", "--pack-destination", folder, cwd=package))
    assert sorted(package.iterdir()) == before, "its scripts take away what they have copied"
    return folder / packed["filename"].replace("@", "").replace("/", "-")


@contextlib.contextmanager
def app_beside(archive, version):
    """An app that has the package and a React installed, with the sources of the tests."""
    with tempfile.TemporaryDirectory(dir=NODE / f"react-{version}") as name:
        folder = Path(name)
        installed = folder / "node_modules/@stoppable"
        with tarfile.open(archive) as packed:
            packed.extractall(installed, filter="data")
        (installed / "package").rename(installed / "button")
        shutil.copytree(ROOT / "tests/browser/react_app", folder, dirs_exist_ok=True)
        (folder / "package.json").write_text('{"type": "module"}')
        yield folder


def write_docs(folder):
    """Write what docs/embedding.md shows, and return the names of the files."""
    page = (ROOT / "docs/embedding.md").read_text()
    chat, small_stop = re.findall(r"^```tsx\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (folder / "chat.tsx").write_text(chat)
    (folder / "small-stop.tsx").write_text(small_stop)
    return "chat.tsx", "small-stop.tsx"


def bundle(source, target, *options, mode="production"):
    define = f'--define:process.env.NODE_ENV="{mode}"'
    esbuild = TOOLS / "esbuild"
    call(esbuild, source, "--bundle", "--jsx=automatic", define, *options, f"--outfile={target}", cwd=source.parent)


def check_types(folder, *files, resolution="bundler", **options):
    module = {"bundler": "esnext", "nodenext": "nodenext", "node10": "esnext"}[resolution]
    settings = {
        "noEmit": True,
        "strict": True,
        "exactOptionalPropertyTypes": False,
        "target": "es2023",
        "module": module,
        "moduleResolution": resolution,
        "jsx": "react-jsx",
        "lib": ["es2023", "dom", "dom.iterable", "dom.asynciterable"],
        "types": [],
        **options,
    }
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": settings, "files": files}))
    call(TOOLS / "tsc", "-p", folder, cwd=folder)

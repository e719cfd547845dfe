"""The npm package as it would be published: what is in it, and what its types say."""

import json
import re
import shutil
import tarfile

import pytest

import stoppable

from .npm_package import (
    ROOT,
    SOURCE,
    VERSIONS,
    app_beside,
    call,
    check_types,
    is_slow,
    needs_npm,
    needs_react,
    pack,
    write_docs,
)

pytestmark = [needs_npm, needs_react, is_slow]
PACKAGE = json.loads((ROOT / "js/stoppable-button/package.json").read_text())


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("npm"))


@pytest.fixture(params=VERSIONS)
def app(request, archive):
    with app_beside(archive, request.param) as folder:
        yield folder


def test_it_has_what_is_meant_and_the_button_of_the_server(archive):
    with tarfile.open(archive) as packed:
        files = {member.name.removeprefix("package/"): packed.extractfile(member).read() for member in packed}
    modules = {"react.js", "react.d.ts", "stoppable-button.js", "stoppable-button.d.ts"}
    assert set(files) == modules | {"LICENSE", "README.md", "package.json"}
    assert files["stoppable-button.js"] == (ROOT / SOURCE).read_bytes()
    assert files["LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_it_needs_nothing_and_react_only_for_its_part():
    assert PACKAGE.keys().isdisjoint({"dependencies", "devDependencies"})
    assert PACKAGE["peerDependencies"].keys() == PACKAGE["peerDependenciesMeta"].keys() == {"react", "@types/react"}
    assert all(one["optional"] for one in PACKAGE["peerDependenciesMeta"].values())
    for module in (SOURCE, "js/stoppable-button/stoppable-button.d.ts"):
        assert not re.search(r"^\s*import\b|from \"react", (ROOT / module).read_text(), re.MULTILINE), module


def test_it_has_the_licence_and_the_version_of_the_project():
    assert stoppable.__version__ == PACKAGE["version"]
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'^license = "(.*)"', project, re.MULTILINE)[1] == PACKAGE["license"]


def test_it_is_imported_without_a_build_and_without_a_page(app):
    code = """
        import * as button from "@stoppable/button";
        import * as react from "@stoppable/button/react";
        console.log([typeof button.StoppableButton, typeof button.shownOf, ...Object.keys(react)].join());
    """
    told = call("node", "--input-type=module", "-e", code, cwd=app)
    assert told.strip() == "function,function,StoppableButton,useStoppable"


@pytest.mark.parametrize("resolution", ["bundler", "nodenext", "node10"])
def test_an_app_compiles_under_strict_and_a_mistake_does_not(app, resolution):
    check_types(app, "types.tsx", "client.tsx", "server.tsx", resolution=resolution)


def test_the_button_compiles_where_react_is_not_installed(archive, tmp_path):
    with app_beside(archive, VERSIONS[0]) as app:
        shutil.move(app / "node_modules", tmp_path)
    (tmp_path / "alone.ts").write_text(
        'import { shownOf, type Shown } from "@stoppable/button";\n'
        'const made = document.createElement("stoppable-button");\n'
        "made.run = shownOf({}) satisfies Shown;\n"
        'made.addEventListener("ended", ({ detail }) => detail.status.length);\n'
    )
    check_types(tmp_path, "alone.ts")


def test_the_types_agree_with_the_modules(app):
    (app / "source").mkdir()
    for module in (SOURCE, "js/stoppable-button/react.js"):
        shutil.copy(ROOT / module, app / "source")
    check_types(app, "agree.ts", str(ROOT / "tests/browser/types.d.ts"), allowJs=True, checkJs=True)


def test_what_the_docs_show_compiles(app):
    check_types(app, *write_docs(app), "docs.tsx", noUnusedLocals=True)

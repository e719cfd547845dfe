"""The reference has every public name, with an example that tests/docs or tests/adapters executes."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE, DOCS = ROOT / "src", ROOT / "docs"
PUBLIC = ["", ".sync", ".supervisor", ".server", ".client", ".metrics", ".stores", ".testing"]
ADAPTERS = sorted(path.name for path in (SOURCE / "stoppable/adapters").iterdir() if (path / "__init__.py").exists())
FURTHER = [".adapters.mcp.serving", ".adapters.turn", ".server.prometheus"]
MODULES = [f"stoppable{part}" for part in [*PUBLIC, *FURTHER, *(f".adapters.{name}" for name in ADAPTERS)]]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def public_names(module):
    path = SOURCE / module.replace(".", "/")
    code = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "__all__" for alias in node.names):
            names += public_names(node.module)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == "__all__":
                names += ast.literal_eval(node.value)
    assert names, f"{module} has no __all__"
    return names


def described():
    """Return the page on which each name is described; a page may leave the examples to the how-to of its name."""
    found = {}
    for page in sorted((DOCS / "reference").glob("*.md")):
        for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            assert name not in found, f"{name} is described twice"
            found[name] = page
    return found


def examples(page):
    return "\n".join(
        code
        for path in (page, DOCS / "how-to" / page.name)
        if path.exists()
        for code in BLOCK.findall(path.read_text())
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference_with_an_example(module):
    pages = described()
    for name in public_names(module):
        page = pages.get(f"{module}.{name}") or pages.get(f"stoppable.{name}")
        assert page is not None, f"{module}.{name} is in no page of docs/reference: add '::: {module}.{name}'"
        assert re.search(rf"\b{name}\b", examples(page)), f"{page.name} has no example of {name}"


def test_the_reference_describes_nothing_else():
    public = {f"{module}.{name}" for module in MODULES for name in public_names(module)}
    assert set(described()) <= public


def test_the_site_has_every_page():
    _, nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")
    listed = re.findall(r"\S+\.md$", nav, re.MULTILINE)
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    numbered = {page for page in there if page.startswith("decisions/0")}  # its overview lists them
    assert sorted(listed) == sorted(there - numbered), "mkdocs.yml names each page once"
    overview = (DOCS / "decisions/README.md").read_text()
    assert [page for page in numbered if Path(page).name not in overview] == []


def anchors_of(page):
    return {slug(title) for title in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


def slug(title):
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_to_a_page_and_a_heading(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if path.is_relative_to(DOCS):
            assert path.is_file(), f"{page.name} links to the folder {target}: link to a page"
        if anchor:
            assert anchor in anchors_of(path), f"{page.name} links to {target}#{anchor}"

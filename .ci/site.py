"""Hooks of MkDocs for `make docs`."""

import re
from pathlib import Path

DOCS = (Path(__file__).parents[1] / "docs").resolve()
LINK = re.compile(r"\[([^]]+)\]\((\.\.?/[^)#]+)\)")
ELSEWHERE = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//|url\(["']?https?://""")


def on_page_markdown(markdown, *, page, **_):
    """Replace links that leave docs/, which work in the repository, by the path of the file."""
    folder = Path(page.file.abs_src_path).parent

    def shown(link):
        target = (folder / link[2]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        return f"{link[1]} (`{target.relative_to(DOCS.parent)}`)"

    return LINK.sub(shown, markdown)


def on_post_build(config, **_):
    """Fail if a page or style sheet loads anything from another host."""
    for path in Path(config.site_dir).rglob("*"):
        if path.suffix in {".html", ".css"} and (found := ELSEWHERE.search(path.read_text())):
            raise RuntimeError(f"{path} loads something from another host: {found[0]}")

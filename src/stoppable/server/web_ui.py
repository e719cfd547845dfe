"""The web UI: static files that use the routes over HTTP, like any other client."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from starlette.responses import Response

from stoppable.errors import InvalidArgument
from stoppable.server.responses import Problem

_FOLDER = "ui"
_PAGE = "index.html"
_BUTTON = "stoppable-button.js"
_API = b'name="stoppable-api" content="."'

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "json": "application/json",
}

# With trusted types, text of an agent can never become markup, whatever our scripts do with it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Cache-Control": "no-cache",  # cached, but revalidated, so that an upgrade does not mix two versions
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    content: bytes
    kind: str

    def response(self, request: Request, name: str) -> Response:
        """Return the file, or 304 if the browser has it."""
        tag = f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'
        headers = {**_HEADERS, "ETag": tag}
        if name == _BUTTON:
            headers["Access-Control-Allow-Origin"] = "*"  # a page of another origin may embed it; it is public code
            headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        known_tags = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
        if tag in known_tags or "*" in known_tags:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.kind)


def ui(prefix: str = "", *, api: str | None = None) -> APIRouter:
    """Return the web UI, to include in a FastAPI app next to ``router``.

    The page is at ``prefix/``, its files are below ``prefix/ui/``. ``api`` is the prefix of the routes, if it differs
    from ``prefix``. The files contain no secrets: the page loads everything from the routes, with the permissions of
    its user.
    """
    for name, path in (("prefix", prefix), ("api", api or "")):
        if path and (not path.startswith("/") or path.endswith("/")):
            raise InvalidArgument(f"{name} is {path!r}: begin it with a slash and end it without one")
    files = dict(_files(_folder()))

    async def page(request: Request) -> Response:
        return _page(files[_PAGE], request, api).response(request, _PAGE)

    async def file(request: Request, path: str) -> Response:
        static_file = files.get(path)
        if static_file is None or path == _PAGE:
            return Problem(404, "not_found", "there is no such file").to_response()
        return static_file.response(request, path)

    pages = APIRouter(prefix=prefix)
    for path, handler in (("/", page), (f"/{_FOLDER}/{{path:path}}", file)):
        pages.add_api_route(path, handler, methods=["GET", "HEAD"], include_in_schema=False, response_class=Response)
    return pages


def add_button(router: APIRouter) -> None:
    """Add the file of the button, without the dependencies of a router: it is public code."""
    file = _File(content=_folder().joinpath(_BUTTON).read_bytes(), kind=_TYPES["js"])

    async def button(request: Request) -> Response:
        return file.response(request, _BUTTON)

    router.add_route(f"/{_FOLDER}/{_BUTTON}", button, methods=["GET"], include_in_schema=False)


def _folder() -> Traversable:
    return resources.files("stoppable.server").joinpath(_FOLDER)


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, _File]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _files(one, f"{above}{one.name}/")
        elif (kind := _TYPES.get(one.name.rpartition(".")[2])) is not None:
            yield above + one.name, _File(content=one.read_bytes(), kind=kind)


def _page(page: _File, request: Request, api: str | None) -> _File:
    """Return the page with the address of the routes, by default below the page itself."""
    if api is None:
        return page
    place = html.escape(request.scope.get("root_path", "") + api + "/")
    content = page.content.replace(_API, _API.replace(b'"."', f'"{place}"'.encode()))
    return _File(content=content, kind=page.kind)

"""The web UI as files: where they are, what browsers are told about them, and that they are in the wheel."""

from __future__ import annotations

import re
from importlib import resources

import httpx
import pytest
from fastapi import FastAPI

import stoppable
from stoppable.server import create_app, ui
from stoppable.supervisor import Supervisor

from .serving import client_of, served

PAGE = resources.files("stoppable.server").joinpath("ui/index.html").read_bytes()


async def test_the_server_has_the_page_at_its_root_and_every_file_that_the_page_names():
    with served([]) as service:
        async with client_of(service) as client:
            page = await client.get("/")
            assert page.content == PAGE
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            names = re.findall(r'(?:src|href)="(ui/[^"]+)"', page.text)
            assert names
            for name in names:
                file = await client.get(f"/{name}")
                assert file.status_code == 200, name
                assert file.headers["x-content-type-options"] == "nosniff"


async def test_the_page_has_a_strict_policy_of_its_own_and_answers_keep_theirs():
    with served([]) as service:
        async with client_of(service) as client:
            page, answer = await client.get("/"), await client.get("/runs")
    policy = page.headers.get_list("content-security-policy")
    assert len(policy) == 1
    told = dict(part.strip().split(" ", 1) for part in policy[0].split(";"))
    assert told["default-src"] == "'none'"
    assert told["script-src"] == told["style-src"] == told["connect-src"] == "'self'"
    assert told["frame-ancestors"] == told["base-uri"] == told["form-action"] == "'none'"
    assert "unsafe" not in policy[0]
    assert page.headers["x-frame-options"] == "DENY"
    assert "script-src" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


async def test_a_browser_that_has_a_file_is_told_so_until_the_file_changes():
    with served([]) as service:
        async with client_of(service) as client:
            first = await client.get("/ui/icon.svg")
            assert first.headers["cache-control"] == "no-cache"
            tag = first.headers["etag"]
            again = await client.get("/ui/icon.svg", headers={"If-None-Match": f'"old", W/{tag}'})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            other = await client.get("/ui/icon.svg", headers={"If-None-Match": '"old"'})
            assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize(
    "path", ["ui/nothing.js", "ui/", "ui/index.html", "ui/../pages.py", "ui/%2e%2e/pages.py", "ui/a%00"]
)
async def test_there_is_nothing_else(path):
    with served([]) as service:
        async with client_of(service) as client:
            answer = await client.get(f"/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


async def test_the_page_needs_no_key_and_what_it_shows_does():
    with served([], api_key="a-long-secret") as service:
        async with client_of(service) as client:
            assert (await client.get("/")).status_code == 200
            assert (await client.get("/runs")).status_code == 401


def asking(app, root_path=""):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, root_path=root_path), base_url="http://here")


async def test_one_line_mounts_it_in_an_app_that_you_have():
    app = FastAPI()
    app.include_router(ui("/agents"))
    async with asking(app) as client:
        assert (await client.get("/agents/")).content == PAGE
        assert (await client.get("/agents")).headers["location"] == "http://here/agents/"
        assert (await client.get("/agents/ui/icon.svg")).status_code == 200
        assert (await client.get("/agents/ui/no.js")).json()["error"]["code"] == "not_found"
        assert "script-src 'self'" in (await client.get("/agents/")).headers["content-security-policy"]
        assert app.openapi()["paths"] == {}


async def test_the_page_is_told_where_the_routes_are_if_that_is_elsewhere():
    app = FastAPI()
    app.include_router(ui("/board", api="/agents"))
    async with asking(app, "/behind/a/proxy") as client:
        page = await client.get("/behind/a/proxy/board/")
    assert '<meta name="stoppable-api" content="/behind/a/proxy/agents/">' in page.text
    assert page.content != PAGE


@pytest.mark.parametrize("wrong", ["agents", "/agents/", "/"])
def test_a_prefix_that_would_not_work_is_refused(wrong):
    with pytest.raises(stoppable.errors.InvalidArgument, match="begin it with a slash"):
        ui(wrong)


def test_the_page_says_where_the_routes_are_in_the_form_that_the_server_rewrites():
    assert b'<meta name="stoppable-api" content=".">' in PAGE


async def test_the_page_is_not_in_the_document_of_the_routes():
    app = create_app(Supervisor())
    assert "/" not in app.openapi()["paths"]


async def test_the_button_may_be_loaded_by_any_page_and_stops_for_those_that_are_allowed():
    friend = "https://friend.example"
    with served([], allowed_origins=[friend]) as service:
        async with client_of(service) as client:
            button = await client.get("/ui/stoppable-button.js", headers={"Origin": "https://other.example"})
            assert button.headers["access-control-allow-origin"] == "*"
            assert button.headers["cross-origin-resource-policy"] == "cross-origin"
            for name in ("/", "/ui/app.js"):
                assert "access-control-allow-origin" not in (await client.get(name)).headers
            wanted = {"Access-Control-Request-Headers": "authorization,content-type,last-event-id"}
            for method, path in (("POST", "/runs/a/stop"), ("GET", "/runs/a/events"), ("GET", "/events")):
                ask = {**wanted, "Access-Control-Request-Method": method}
                allowed = await client.options(path, headers={**ask, "Origin": friend})
                assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, friend)
                other = await client.options(path, headers={**ask, "Origin": "https://other.example"})
                assert "access-control-allow-origin" not in other.headers

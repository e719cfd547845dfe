"""The table of routes, owners and scopes in the docs is what a server really does, and has every route."""

from stoppable.server import Scope

from .route_table import ROWS, generate, written

WITHOUT = {"/healthz", "/readyz"}
WRITE = "`python -m tests.server.route_table` writes the table into the docs: read what has changed"


async def test_the_table_in_the_docs_is_what_a_server_does_and_has_every_route():
    table, document = await generate()
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {(row.method, row.path) for row in ROWS} == routes, "every route has a row in tests/server/route_table.py"
    assert table == written(), WRITE
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    for row, (_, scopes, owner, other, operator) in zip(ROWS, cells, strict=True):
        if row.path in WITHOUT:
            assert scopes == "–"
            continue
        assert scopes.replace("`", "").split(", ")[0] in list(Scope), f"{row} needs a scope"
        assert owner in {"yes", "shown"}, row
        assert operator in {"yes", "all of them"}, row
        if "{" in row.path:
            assert other.startswith("404"), row
        elif row.shows:
            assert other == "left out", row
        elif row.note == "with `owner`":
            assert other == "403 `foreign_owner`", row

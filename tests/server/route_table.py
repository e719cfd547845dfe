"""What each caller may do on each route, found out by asking a real server; ``python -m tests.server.route_table``
writes it into the docs.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from fastapi import Header

import stoppable
from stoppable.server import Principal, Scope

from .serving import DEADLINE, client_of, parsed, served

PAGE = Path(__file__).parents[2] / "docs/how-to/auth.md"
BEGIN, END = "<!-- routes: generated -->\n", "<!-- routes: end -->\n"
CALLERS = {"owner": "ada", "another owner": "eve", "`sees_all`": "root"}


async def by_header(x_user: str = Header(), x_scopes: str = Header()) -> Principal:
    owner = None if x_user == "root" else x_user
    return Principal(owner=owner, sees_all=owner is None, actor=x_user, scopes=x_scopes)


async def quick():
    """Do nothing."""


async def sleeper():
    """Wait for a stop."""
    await stoppable.sleep(600)


@dataclass(frozen=True)
class Row:
    """A request about what belongs to ada. With ``shows``, the answer is always 200, and may have it in it."""

    method: str
    path: str
    body: object = None
    note: str = ""
    shows: bool = False


HOLD = {"selector": {"labels": {"team": "x"}}, "hold": True}
ROWS = [
    Row("POST", "/runs", {"agent": "quick"}),
    Row("POST", "/runs", {"agent": "quick", "owner": "ada"}, note="with `owner`"),
    Row("GET", "/runs", shows=True),
    Row("GET", "/runs/{run_id}"),
    Row("GET", "/runs/{run_id}/tree"),
    Row("GET", "/runs/{run_id}/receipt"),
    Row("GET", "/runs/{run_id}/events"),
    Row("GET", "/events", shows=True),
    Row("POST", "/runs/{run_id}/stop", {}),
    Row("POST", "/stops", {"selector": {"agent": "sleeper"}, "dryRun": True}, shows=True),
    Row("POST", "/stops", {"selector": {"owner": "ada"}, "dryRun": True}, note="with `owner`"),
    Row("POST", "/stops", {**HOLD, "dryRun": True}, note="with `hold`"),
    Row("GET", "/holds", shows=True),
    Row("DELETE", "/holds/{hold_id}"),
    Row("GET", "/audit", shows=True),
    Row("GET", "/agents"),
    Row("GET", "/whoami"),
    Row("GET", "/healthz"),
    Row("GET", "/readyz"),
]


def headers(user, scopes=tuple(Scope)):
    return {"X-User": user, "X-Scopes": " ".join(scopes)}


class Table:
    """Asks a server what each caller may do."""

    def __init__(self, client):
        self._client = client

    async def open(self):
        """Make what the requests are about, all of ada: a live run, and one that was stopped."""
        self.live = await self._start("ada", "sleeper")
        self.run = await self._start("ada", "sleeper")
        await self._client.post(f"/runs/{self.run}/stop?wait=30", headers=headers("ada"))

    async def _start(self, user, agent):
        return (await self._client.post("/runs", json={"agent": agent}, headers=headers(user))).json()["id"]

    async def _hold(self):
        return (await self._client.post("/stops", json=HOLD, headers=headers("ada"))).json()["hold"]["id"]

    async def ask(self, row, user, scopes=tuple(Scope)):
        """Return the status, the code of the error, and whether what is ada's was in the answer."""
        hold = await self._hold() if "hold" in row.path else None
        path = row.path.format(run_id=self.run, hold_id=hold)
        request = self._client.stream(row.method, path, json=row.body, headers=headers(user, scopes))
        async with request as response:
            if response.headers.get("content-type", "").startswith("text/event-stream") and row.shows:
                return 200, None, await self._shown_live(response, user)
            text = (await response.aread()).decode()
        code = json.loads(text)["error"]["code"] if response.status_code >= 400 else None
        return response.status_code, code, any(one in text for one in (self.live, self.run, hold or self.run))

    async def _shown_live(self, response, user):
        """Let a run of ada end and then one of the caller, and follow the stream until it has the later end."""
        lines = parsed(response.aiter_lines())
        while (await anext(lines))["event"] != "flight":
            pass
        hers = await self._start("ada", "quick")
        async with asyncio.timeout(DEADLINE):
            while not (await self._client.get(f"/runs/{hers}", headers=headers("root"))).json()["endedAt"]:
                await asyncio.sleep(0.01)
            own = await self._start(user, "quick")
            seen = set()
            while own not in seen:
                found = await anext(lines)
                if found["event"] == "run" and found["data"]["endedAt"]:
                    seen.add(found["data"]["id"])
        return hers in seen

    async def scopes(self, row):
        """Return the scopes without which ada is refused."""
        needed = []
        for scope in Scope:
            status, code, _ = await self.ask(row, "ada", [one for one in Scope if one is not scope])
            if (status, code) == (403, "missing_scope"):
                needed.append(scope.value)
        status, code, _ = await self.ask(row, "ada", needed)
        assert code != "missing_scope", f"{row} needs more than {needed}"
        return needed

    async def words(self, row, user):
        """Return what a caller gets."""
        status, code, is_shown = await self.ask(row, user)
        if status >= 400:
            return f"{status} `{code}`"
        if row.shows:
            return "all of them" if user == "root" and is_shown else "shown" if is_shown else "left out"
        return "yes"

    async def lines(self):
        """Return the table."""
        await self.open()
        yield f"| route | scopes | {' | '.join(CALLERS)} |"
        yield "|---" * (2 + len(CALLERS)) + "|"
        for row in ROWS:
            route = f"`{row.method} {row.path}`" + (f" {row.note}" if row.note else "")
            scopes = ", ".join(f"`{scope}`" for scope in await self.scopes(row)) or "–"
            words = [await self.words(row, user) for user in CALLERS.values()]
            yield f"| {route} | {scopes} | {' | '.join(words)} |"


async def generate():
    """Return the table, as the docs have it."""
    with served([quick, sleeper], principal=by_header) as service:
        async with client_of(service) as client:
            lines = [line async for line in Table(client).lines()]
            document = (await client.get("/openapi.json")).json()
    return "\n".join(lines) + "\n", document


def written():
    """Return the table in the docs."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    table, _ = asyncio.run(generate())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2])

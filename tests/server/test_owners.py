"""Another owner's run does not exist, whatever is asked about it."""

import asyncio
import json

import pytest
from fastapi import Header
from tests.waiting import until

import stoppable
from stoppable.errors import RunNotFound, StoreError
from stoppable.server import Principal, ServerLimits
from stoppable.server.access import Scope
from stoppable.server.responses import Problem
from stoppable.stores.base import StoreFuture

from .serving import RawStream, client_of, over, served, started


async def by_header(x_user: str = Header(), x_scopes: str = Header("read start stop hold audit")) -> Principal:
    owner = None if x_user == "root" else x_user
    return Principal(owner=owner, sees_all=owner is None, actor=f"{x_user}@example", scopes=x_scopes.split())


async def sleeper():
    await stoppable.sleep(60)


@pytest.fixture
def service():
    with served([sleeper], principal=by_header) as service:
        yield service


def as_user(name, **more):
    return {"headers": {"X-User": name, **more}}


async def test_a_run_of_another_owner_is_not_found(service):
    async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("eve")) as eve:
        run_id = await started(ada, "sleeper")
        for request in (
            eve.get(f"/runs/{run_id}"),
            eve.get(f"/runs/{run_id}/tree"),
            eve.get(f"/runs/{run_id}/receipt"),
            eve.get(f"/runs/{run_id}/events"),
            eve.post(f"/runs/{run_id}/stop"),
        ):
            response = await request
            assert (response.status_code, response.json()["error"]["code"]) == (404, "run_not_found")
        unknown = await eve.get("/runs/nobody")
        mine = await eve.get(f"/runs/{run_id}")
        assert mine.text.replace(run_id, "nobody") == unknown.text, "the answer tells nothing apart"
        assert (await eve.get("/runs")).json()["runs"] == []
        assert (await eve.get("/runs", params={"owner": "ada"})).json()["runs"] == []
        assert [run["id"] for run in (await ada.get("/runs")).json()["runs"]] == [run_id]
        assert (await ada.get(f"/runs/{run_id}")).json()["status"] == "running"
        # a tombstone of another owner stops nobody's run
        response = await eve.post("/runs/later/stop", params={"ifUnknown": "wait"})
        assert response.status_code == 202
        await started(ada, "sleeper", runId="later")
        assert (await ada.get("/runs/later")).json()["status"] == "running"


async def test_a_bulk_stop_and_its_hold_stay_with_their_owner(service):
    async with (
        client_of(service, **as_user("ada")) as ada,
        client_of(service, **as_user("eve")) as eve,
        client_of(service, **as_user("root")) as root,
    ):
        hers = await started(ada, "sleeper")
        mine = await started(eve, "sleeper")
        response = await eve.post("/stops", json={"selector": {"owner": "ada"}})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "foreign_owner")
        response = await eve.post("/stops", json={"selector": {"all": True}, "hold": True})
        assert [receipt["runId"] for receipt in response.json()["receipts"]] == [mine]
        assert response.json()["hold"]["selector"]["owner"] == "eve"
        hold = response.json()["hold"]["id"]
        assert (await ada.get(f"/runs/{hers}")).json()["status"] == "running"
        await started(ada, "sleeper")
        assert (await eve.post("/runs", json={"agent": "sleeper"})).status_code == 423

        assert (await ada.get("/holds")).json()["holds"] == []
        assert (await ada.delete(f"/holds/{hold}")).status_code == 404
        assert (await ada.get("/audit")).json()["entries"] == []
        assert [entry["actor"] for entry in (await eve.get("/audit")).json()["entries"]] == ["eve@example"]

        everybody = (await root.post("/stops", json={"selector": {"all": True}, "hold": True})).json()["hold"]["id"]
        assert (await ada.post("/runs", json={"agent": "sleeper"})).json()["error"]["holdId"] == everybody
        assert (await ada.delete(f"/holds/{everybody}")).status_code == 404, "not hers to release"
        assert (await root.delete(f"/holds/{everybody}")).status_code == 200
        assert (await eve.delete(f"/holds/{hold}")).status_code == 200
        assert (await eve.delete(f"/holds/{hold}")).status_code == 404


async def test_the_owner_comes_from_the_principal(service):
    async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("root")) as root:
        run_id = await started(ada, "sleeper")
        assert (await ada.get(f"/runs/{run_id}")).json()["owner"] == "ada"
        response = await ada.post("/runs", json={"agent": "sleeper", "owner": "eve"})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "foreign_owner")
        run_id = await started(root, "sleeper", owner="eve")
        assert (await root.get(f"/runs/{run_id}")).json()["owner"] == "eve"
        response = await root.post(f"/runs/{run_id}/stop", params={"wait": 5})
        assert response.json()["receipt"]["reason"]["actor"] == "root@example"
        assert (await root.get("/audit")).json()["entries"][-1]["actor"] == "root@example"


async def test_the_same_idempotency_key_of_another_owner_is_another_key(service):
    async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("eve")) as eve:
        runs = {client: await started(client, "sleeper") for client in (ada, eve)}
        for client, run_id in runs.items():
            response = await client.post(
                "/stops", json={"selector": {"all": True}}, headers={"Idempotency-Key": "the-same"}
            )
            assert [receipt["runId"] for receipt in response.json()["receipts"]] == [run_id]


SCOPES = [
    ("start stop hold audit", "GET", "/runs", None),
    ("start stop hold audit", "GET", "/runs/x/events", None),
    ("start stop hold audit", "GET", "/agents", None),
    ("start stop hold audit", "GET", "/whoami", None),
    ("read stop hold audit", "POST", "/runs", {"agent": "sleeper"}),
    ("read start hold audit", "POST", "/runs/x/stop", {}),
    ("read start hold audit", "POST", "/stops", {"selector": {"all": True}}),
    ("read start stop audit", "POST", "/stops", {"selector": {"all": True}, "hold": True}),
    ("read start stop audit", "DELETE", "/holds/x", None),
    ("read start stop hold", "GET", "/audit", None),
]


@pytest.mark.parametrize("scopes", ["read start", ["read", "start"], iter(["read", "start"])])
def test_scopes_are_whole_words_of_a_string_or_of_a_list(scopes):
    principal = Principal(scopes=scopes)
    for _ in range(2):
        principal.require(Scope.READ)
        principal.require(Scope.START)
    with pytest.raises(Problem, match="the scope 'stop' is missing"):
        principal.require(Scope.STOP)
    with pytest.raises(Problem, match="the scope 'read' is missing"):
        Principal(scopes="read-only").require(Scope.READ)


async def test_a_missing_scope_is_403(service):
    for scopes, method, path, body in SCOPES:
        async with client_of(service, **as_user("root", **{"X-Scopes": scopes})) as client:
            response = await client.request(method, path, json=body)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "missing_scope"), (method, path)


async def test_a_caller_learns_what_it_may_do(service):
    async with (
        client_of(service, **as_user("ada", **{"X-Scopes": "stop read other"})) as ada,
        client_of(service, **as_user("root", **{"X-Scopes": "read"})) as root,
    ):
        hers = (await ada.get("/whoami")).json()
        everybody = (await root.get("/whoami")).json()
    assert hers == {"owner": "ada", "seesAll": False, "actor": "ada@example", "scopes": ["read", "stop"]}
    assert everybody == {"owner": None, "seesAll": True, "actor": "root@example", "scopes": ["read"]}


async def test_a_stop_that_waited_for_a_run_of_its_owner_is_not_told_to_another(service):
    """The id is the same, the run that it means is not."""
    async with (
        client_of(service, **as_user("ada")) as ada,
        client_of(service, **as_user("eve")) as eve,
        client_of(service, **as_user("root")) as root,
    ):
        for client, reason in ((eve, "of eve"), (ada, "of ada"), (root, "of root")):
            response = await client.post("/runs/same/stop", params={"ifUnknown": "wait"}, json={"reason": reason})
            assert response.status_code == 202
        assert (await ada.post("/runs", json={"agent": "sleeper", "runId": "same"})).json()["status"] == "stopped"
        seen = {  # a stop of an owner waits for the id with and without the owner's tag, and has an entry for each
            name: list(dict.fromkeys(entry["reason"] for entry in (await client.get("/audit")).json()["entries"]))
            for name, client in (("ada", ada), ("eve", eve), ("root", root))
        }
    assert seen == {"ada": ["of ada"], "eve": ["of eve"], "root": ["of eve", "of ada", "of root"]}


async def test_the_audit_of_one_owner_is_read_in_parts(service):
    async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("eve")) as eve:
        hers = []
        for n in range(6):
            client = ada if n % 3 == 0 else eve
            run_id = await started(client, "sleeper")
            await client.post(f"/runs/{run_id}/stop", json={"reason": str(n)})
            if client is ada:
                hers.append(str(n))
        found, after = [], 0
        async with asyncio.timeout(30):
            while after is not None:
                part = (await ada.get("/audit", params={"after": after, "limit": 2})).json()
                found += [entry["reason"] for entry in part["entries"]]
                after = part["after"]
        assert found == hers


async def test_a_reader_that_may_not_stop_a_run_does_not_stop_it_by_leaving_its_stream():
    limits = ServerLimits(disconnect_grace=0.0)
    with served([sleeper], principal=by_header, limits=limits) as service:
        async with client_of(service, **as_user("ada")) as ada:
            run_id = await started(ada, "sleeper", onDisconnect="stop")
            reader = {"X-User": "ada", "X-Scopes": "read"}
            streams = service.app.state.backend.streams
            await (await RawStream.open(service, run_id, headers=reader)).drop()
            await until(lambda: not len(streams))
            assert (await ada.get(f"/runs/{run_id}")).json()["status"] == "running"
            assert not streams._stopping
            await (await RawStream.open(service, run_id, headers={"X-User": "ada"})).drop()
            assert (await over(ada, run_id))["outcome"]["reason"]["kind"] == "disconnect"


async def test_what_ails_the_store_is_told_to_the_operator_and_the_log_alone(service, caplog, monkeypatch):
    def refuse(*_, **__):
        def fail():
            raise StoreError("/var/lib/runs.db is full")

        return StoreFuture.of(fail)

    monkeypatch.setattr(service.supervisor.store, "query", refuse)
    async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("root")) as root:
        told = {client: (await client.get("/runs")).json()["error"] for client in (ada, root)}
    assert told[ada] == {"code": "store_unavailable", "message": "the store does not answer: try again"}
    assert told[root] == {"code": "store_unavailable", "message": "/var/lib/runs.db is full"}
    assert "the store failed a request: /var/lib/runs.db is full" in caplog.text


async def mixed():
    """Open a run of somebody else inside a run, as a tool does that acts for another tenant."""
    async with stoppable.open_run("of-ada-too") as own, stoppable.boundary("tool", "own"):
        while not await is_kept(own.id):
            await asyncio.sleep(0.005)
        async with foreign_run(), stoppable.boundary("tool", "secret"):
            await stoppable.sleep(60)


async def is_kept(run_id):
    try:
        return await MIXED[0].get(run_id)
    except RunNotFound:
        return None


def foreign_run():
    return MIXED[0].open_run("secret-run", owner="eve", run_id="secret-id")


MIXED = []


async def test_neither_a_tree_nor_a_receipt_shows_the_runs_of_another_owner():
    with served([mixed], principal=by_header) as service:
        MIXED[:] = [service.supervisor]
        async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("root")) as root:
            run_id = await started(ada, "mixed")
            await until_found(root, "secret-id")
            stopped = (await ada.post(f"/runs/{run_id}/stop", json={"mode": "immediate"}, params={"wait": 15})).json()
            assert stopped["status"] == "stopped"
            seen = [stopped] + [(await ada.get(f"/runs/{run_id}{more}")).json() for more in ("", "/tree", "/receipt")]
            for told in seen:
                assert "secret" not in json.dumps(told), told
                assert "of-ada-too" in json.dumps(told) or told is seen[1]
            stream = await ada.get(f"/runs/{run_id}/events", params={"tree": True})
            assert "secret" not in stream.text
            assert "of-ada-too" in stream.text or "own" in stream.text
            for more in ("", "/tree", "/receipt", "/events?tree=true"):
                assert "secret" in (await root.get(f"/runs/{run_id}{more}")).text


async def until_found(client, run_id):
    async with asyncio.timeout(30):
        while (await client.get(f"/runs/{run_id}")).status_code != 200:
            await asyncio.sleep(0.005)


async def crowd():
    for _ in range(5):
        await stoppable.spawn(sleeper)
    await stoppable.sleep(60)


async def test_a_tree_is_loaded_once_and_without_the_receipts_in_it(monkeypatch):
    with served([crowd], principal=by_header) as service:
        async with client_of(service, **as_user("ada")) as ada:
            run_id = await started(ada, "crowd")
            loaded = []
            load = service.supervisor.store.tree

            def tree(run_id):
                loaded.append(run_id)
                return load(run_id)

            while len((await ada.get(f"/runs/{run_id}/tree")).json()["runs"]) < 6:
                await asyncio.sleep(0.01)
            await ada.post(f"/runs/{run_id}/stop", params={"wait": 30})
            monkeypatch.setattr(service.supervisor.store, "tree", tree)
            runs = (await ada.get(f"/runs/{run_id}/tree")).json()["runs"]
            assert [run["status"] for run in runs] == ["stopped"] * 6
            assert not any("receipt" in run for run in runs)
            assert loaded == [run_id]


async def test_the_audit_of_an_owner_reads_no_records_and_has_what_an_operator_did_to_its_runs(service, monkeypatch):
    async with (
        client_of(service, **as_user("ada")) as ada,
        client_of(service, **as_user("eve")) as eve,
        client_of(service, **as_user("root")) as root,
    ):
        for client in (ada, eve):
            run_id = await started(client, "sleeper")
            await root.post(f"/runs/{run_id}/stop", json={"reason": "by the operator"}, params={"wait": 30})

        def refuse(run_id):
            raise AssertionError(f"the record of {run_id} was read")

        monkeypatch.setattr(service.supervisor.store, "get", refuse)
        (entry,) = (await eve.get("/audit")).json()["entries"]
        assert entry["target"]["run"] == run_id
        assert (entry["reason"], entry["result"]["owner"]) == ("by the operator", "eve")
        assert len((await root.get("/audit")).json()["entries"]) == 2


async def test_the_reason_of_a_hold_is_told_to_whom_the_hold_is_shown(service):
    async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("root")) as root:
        for selector, is_shown in (({"labels": {"team": "x"}}, False), ({"owner": "ada"}, True)):
            body = {"selector": selector, "hold": True, "reason": "what the operator thinks"}
            hold = (await root.post("/stops", json=body)).json()["hold"]["id"]
            refused = await ada.post("/runs", json={"agent": "sleeper", "labels": {"team": "x"}})
            assert (refused.status_code, refused.json()["error"]["holdId"]) == (423, hold)
            assert ("what the operator thinks" in refused.text) is is_shown
            assert bool((await ada.get("/holds")).json()["holds"]) is is_shown
            refused = await root.post("/runs", json={"agent": "sleeper", "labels": {"team": "x"}, "owner": "ada"})
            assert "what the operator thinks" in refused.text
            await root.delete(f"/holds/{hold}")


async def test_the_ids_that_owners_give_their_runs_are_their_own(service):
    """Nobody can take an id from another, or find out whether another has taken it."""
    async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("eve")) as eve:
        request = {"agent": "sleeper", "runId": "chosen", "labels": {"of": "ada"}}
        first = await ada.post("/runs", json=request)
        assert first.status_code == 201
        answers = {name: await eve.post("/runs", json={**request, "runId": name}) for name in ("chosen", "unused")}
        assert {response.status_code for response in answers.values()} == {201}
        taken, unused = (response.json() for response in answers.values())
        assert taken["id"].replace("chosen", "unused") == unused["id"]
        again = await ada.post("/runs", json=request)
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        assert (await ada.post("/runs", json={"agent": "sleeper", "runId": "chosen"})).status_code == 409
        tagged = await ada.post("/runs", json={**request, "runId": first.json()["id"]})
        assert (tagged.status_code, tagged.json()["id"]) == (200, first.json()["id"])
        for client, run_id in ((ada, first.json()["id"]), (eve, taken["id"])):
            for name in ("chosen", run_id):
                assert (await client.get(f"/runs/{name}")).json()["id"] == run_id
                assert [run["id"] for run in (await client.get(f"/runs/{name}/tree")).json()["runs"]] == [run_id]
                assert (await client.get("/runs", params={"parent": name})).json()["runs"] == []
        assert (await eve.get(f"/runs/{first.json()['id']}")).status_code == 404
        assert (await eve.post(f"/runs/{first.json()['id']}/stop")).status_code == 404
        stopped = await ada.post("/runs/chosen/stop", params={"wait": 30})
        assert (stopped.json()["runId"], stopped.json()["status"]) == (first.json()["id"], "stopped")
        assert (await ada.get("/runs/chosen/receipt")).json()["runId"] == first.json()["id"]
        assert (await eve.get("/runs/chosen")).json()["status"] in {"pending", "running"}
        text = (await ada.get("/runs/chosen/events")).text
        assert "event: done" in text


async def test_an_id_of_one_owner_is_unknown_to_another_in_the_same_words(service):
    async with client_of(service, **as_user("ada")) as ada, client_of(service, **as_user("eve")) as eve:
        run_id = await started(ada, "sleeper", runId="hers")
        for name in (run_id, "hers"):
            for path in ("", "/tree", "/receipt", "/events"):
                known, unknown = await eve.get(f"/runs/{name}{path}"), await eve.get(f"/runs/nobody{path}")
                assert known.text.replace(name, "nobody") == unknown.text
            known, unknown = await eve.post(f"/runs/{name}/stop"), await eve.post("/runs/nobody/stop")
            assert known.text.replace(name, "nobody") == unknown.text
            assert known.status_code == 404

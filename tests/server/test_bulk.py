"""Stop many runs with one request, and hold new ones."""

import asyncio

import stoppable

from .serving import client_of, ended, served, started


async def sleeper():
    await stoppable.sleep(60)


async def other():
    await stoppable.sleep(60)


async def test_a_preview_stops_nothing_and_the_same_key_again_answers_the_same():
    with served([sleeper, other]) as service:
        async with client_of(service) as client:
            wanted = [await started(client, "sleeper", labels={"team": "a"}) for _ in range(3)]
            spared = [
                await started(client, "sleeper", labels={"team": "b"}),
                await started(client, "other", labels={"team": "a"}),
            ]
            body = {"selector": {"labels": {"team": "a"}, "agent": "sleeper"}, "reason": "budget"}

            preview = (await client.post("/stops", json={**body, "dryRun": True, "hold": True})).json()
            assert preview["dryRun"] is True
            assert {receipt["runId"] for receipt in preview["receipts"]} == set(wanted)
            assert {run["status"] for run in (await client.get("/runs")).json()["runs"]} == {"running"}
            assert (await client.get("/holds")).json()["holds"] == [], "nor does it hold anything"

            key = {"Idempotency-Key": "press-1"}
            first = (await client.post("/stops", json=body, headers=key)).json()
            assert {receipt["runId"]: receipt["answer"] for receipt in first["receipts"]} == dict.fromkeys(
                wanted, "accepted"
            )
            late = await started(client, "sleeper", labels={"team": "a"})
            again = (await client.post("/stops", json=body, headers=key)).json()
            assert {receipt["runId"] for receipt in again["receipts"]} == set(wanted)
            assert (await client.get(f"/runs/{late}")).json()["status"] == "running"
            changed = {**body, "selector": {"agent": "other"}}
            response = await client.post("/stops", json=changed, headers=key)
            assert [one["runId"] for one in response.json()["receipts"]] == [spared[1]], (
                "another request is another stop"
            )

            assert (await client.get(f"/runs/{spared[0]}")).json()["status"] == "running"
            listed = await client.get("/runs", params={"label": "team:a", "agent": "sleeper", "status": "running"})
            assert [run["id"] for run in listed.json()["runs"]] == [late]
            entries = (await client.get("/audit")).json()["entries"]
            assert [entry["action"] for entry in entries] == ["stop", "stop"], (
                "a preview and a repetition change nothing"
            )
            assert entries[0]["reason"] == "budget"
            assert entries[0]["target"]["selector"]["agent"] == "sleeper"
            assert set(entries[0]["result"]["runs"]) == set(wanted)


async def test_a_selector_that_says_nothing_or_something_else_is_refused():
    with served([sleeper]) as service:
        async with client_of(service) as client:
            run_id = await started(client, "sleeper")
            for selector in (
                {},
                {"labels": {}},
                {"all": False},
                {"all": "yes"},
                {"all": 1},
                {"label": {"team": "a"}},
                {"owner": ""},
                {"all": True, "ownr": "ada"},
                None,
                [],
            ):
                response = await client.post("/stops", json={"selector": selector})
                assert response.status_code == 422, selector
                assert response.json()["error"]["code"] == "invalid_argument"
            response = await client.post("/stops", json={"selector": {"all": True}, "dryrun": True})
            assert response.status_code == 422, "a misspelt preview must not stop anything"
            assert (await client.get(f"/runs/{run_id}")).json()["status"] == "running"


async def test_a_bulk_stop_with_hold_lets_nothing_slip_through_while_starts_pour_in():
    with served([sleeper]) as service:
        async with client_of(service) as client:
            begun, held, is_held = [], [], asyncio.Event()

            async def pour():
                while len(held) < 20:
                    response = await client.post("/runs", json={"agent": "sleeper", "labels": {"team": "a"}})
                    if response.status_code == 423:
                        held.append(response.json()["error"]["holdId"])
                    else:
                        assert response.status_code == 201
                        begun.append(response.json()["id"])
                        if len(begun) > 30:
                            is_held.set()

            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(pour())
                await is_held.wait()
                response = await client.post(
                    "/stops",
                    json={"selector": {"labels": {"team": "a"}}, "hold": True, "mode": "immediate", "reason": "enough"},
                )
                hold = response.json()["hold"]["id"]
            assert set(held) == {hold}
            async with asyncio.timeout(30):
                while (await client.get("/runs", params={"status": ["pending", "running", "stopping"]})).json()["runs"]:
                    pass
            for run_id in begun:
                assert (await client.get(f"/runs/{run_id}")).json()["status"] == "stopped"

            [placed] = (await client.get("/holds")).json()["holds"]
            assert (placed["id"], placed["reason"]["message"]) == (hold, "enough")
            assert placed["selector"] == {
                "owner": None,
                "labels": {"team": "a"},
                "agent": None,
                "key": None,
                "all": False,
            }
            await started(client, "sleeper", labels={"team": "b"})
            assert (await client.delete(f"/holds/{hold}")).json()["id"] == hold
            await started(client, "sleeper", labels={"team": "a"})
            actions = [entry["action"] for entry in (await client.get("/audit")).json()["entries"]]
            assert actions == ["stop", "release"]


async def test_the_list_is_read_in_parts():
    with served([sleeper]) as service:
        async with client_of(service) as client:
            begun = [await started(client, "sleeper") for _ in range(7)]
            found, cursor = [], None
            while True:
                params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
                part = (await client.get("/runs", params=params)).json()
                found += [run["id"] for run in part["runs"]]
                cursor = part["cursor"]
                if cursor is None:
                    break
            assert found == begun[::-1]
            for wrong in ("x", "9" * 100, "-1", "٣x"):
                assert (await client.get("/runs", params={"cursor": wrong})).status_code == 422


async def test_the_list_tells_how_runs_go_and_not_what_they_produced():
    async def author():
        stoppable.set_partial("p" * 100_000)
        return "r" * 100_000

    async def broken():
        raise LookupError("n" * 100_000)

    with served([author, broken, sleeper]) as service:
        async with client_of(service) as client:
            ids = [await started(client, agent, labels={"n": agent}) for agent in ("author", "broken", "sleeper")]
            for run_id in ids[:2]:
                await ended(client, run_id)
            await client.post(
                f"/runs/{ids[2]}/stop", json={"mode": "immediate", "reason": "enough"}, params={"wait": 10}
            )
            response = await client.get("/runs")
            assert len(response.content) < 5_000
            slept, failed, written = response.json()["runs"]
            for told in (slept, failed, written):
                whole = (await client.get(f"/runs/{told['id']}")).json()
                shared = told.keys() & whole.keys()
                assert {"name", "labels", "status", "createdAt", "endedAt", "stopRequestedAt"} <= shared
                assert {name: told[name] for name in shared} == {name: whole[name] for name in shared}
                assert [told[name] for name in ("reason", "rung", "clean")] == [
                    whole["outcome"][name] for name in ("reason", "rung", "clean")
                ]
            assert (slept["mode"], slept["reason"]["message"]) == ("immediate", "enough")
            assert failed["error"].startswith("LookupError: nnn")
            assert [written[name] for name in ("error", "mode", "reason")] == [None, None, None]
            assert (await client.get(f"/runs/{ids[0]}")).json()["outcome"]["result"] == "r" * 100_000

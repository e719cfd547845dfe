"""Conversations over HTTP: started, found and stopped by their keys."""

import stoppable

from .serving import asked_for, client_of, over, served, started

KEY = "chat:ann/42 ü?&#"


async def sleeper():
    await stoppable.sleep(60)


async def parent():
    await stoppable.call(sleeper)


async def test_a_conversation_is_started_found_and_stopped_by_its_key():
    with served([parent, sleeper]) as service:
        async with client_of(service) as client:
            run_id = await started(client, "parent", key=KEY)
            other = await started(client, "sleeper", key="another")
            assert (await client.get(f"/runs/{run_id}")).json()["key"] == KEY
            listed = (await client.get("/runs", params={"key": KEY})).json()["runs"]
            assert [(run["id"], run["key"]) for run in listed] == [(run_id, KEY)]
            roots = (await client.get("/runs", params={"roots": "true"})).json()["runs"]
            assert {run["id"] for run in roots} == {run_id, other}

            stopped = await client.post("/stops", json={"selector": {"key": KEY}}, params={"wait": 30})
            [receipt] = stopped.json()["receipts"]
            assert (receipt["runId"], receipt["status"], stopped.json()["waitsUntil"]) == (run_id, "stopped", None)
            assert (await client.get(f"/runs/{other}")).json()["status"] == "running"


async def test_a_stop_that_comes_first_waits_for_its_conversation_unless_told_not_to():
    with served([sleeper]) as service:
        async with client_of(service) as client:
            body = {"selector": {"key": KEY}, "ifUnknown": "ignore"}
            assert (await client.post("/stops", json=body)).json()["waitsUntil"] is None
            preview = (await client.post("/stops", json={"selector": {"key": KEY}, "dryRun": True})).json()
            assert preview["waitsUntil"] is None
            answer = (await client.post("/stops", json={"selector": {"key": KEY}, "reason": "not now"})).json()
            assert (answer["receipts"], answer["waitsUntil"] is not None) == ([], True)
            run = (await client.post("/runs", json={"agent": "sleeper", "key": KEY})).json()
            assert (run["status"], run["startedAt"], run["stop"]["reason"]["message"]) == ("stopped", None, "not now")
            await started(client, "sleeper", key=KEY)
            [entry] = (await client.get("/audit")).json()["entries"][1:2]
            assert entry["target"]["selector"]["key"] == KEY


async def test_a_stop_that_comes_after_a_turn_meets_the_next_one_only_if_it_says_so():
    with served([parent, sleeper]) as service:
        async with client_of(service) as client:
            await started(client, "sleeper", key=KEY)
            await client.post("/stops", json={"selector": {"key": KEY}}, params={"wait": 30})
            late = (await client.post("/stops", json={"selector": {"key": KEY}})).json()
            assert (late["receipts"], late["waitsUntil"]) == ([], None)
            asked = (await client.post("/stops", json={"selector": {"key": KEY}, "ifUnknown": "wait"})).json()
            assert asked["waitsUntil"] is not None


async def test_what_is_no_key_is_refused_and_a_selector_with_more_waits_for_nothing():
    with served([sleeper]) as service:
        async with client_of(service) as client:
            for wrong in (1, [], {"a": 1}, "x" * 5000):
                assert (await client.post("/stops", json={"selector": {"key": wrong}})).status_code == 422
                refused = await client.post("/runs", json={"agent": "sleeper", "key": wrong})
                assert refused.status_code == 422
            both = {"selector": {"key": KEY, "agent": "sleeper"}}
            assert (await client.post("/stops", json=both)).json()["waitsUntil"] is None
            await started(client, "sleeper", key=KEY)


async def test_the_input_of_a_run_is_in_its_record():
    async def ask(question, depth=1):
        return depth

    with served([ask]) as service:
        async with client_of(service) as client:
            for given in ({"question": "why?", "depth": 2}, "why?"):
                run = await over(client, await asked_for(client, "ask", given))
                assert run["input"]["question"] == "why?"

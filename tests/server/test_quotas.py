"""What one client asks for is bounded by the server: how long its runs resist a stop, and how many there are."""

import stoppable
from stoppable.server import ServerLimits

from .serving import client_of, ended, served, started


@stoppable.agent
async def sleeper():
    await stoppable.sleep(60)


def worker():
    stoppable.sync.sleep(60)


async def test_the_policy_the_limits_and_the_grace_of_a_client_are_capped():
    limits = ServerLimits(rung_seconds=2.0, run_seconds=50.0)
    month = 2_592_000
    with served([sleeper], limits=limits) as service:
        async with client_of(service) as client:
            asked = {"grace": month, "interrupt": month, "cancel": 1, "kill": month}
            run_id = await started(client, "sleeper", policy=asked, limits={"seconds": month, "boundaries": {"llm": 3}})
            record = (await client.get(f"/runs/{run_id}")).json()
            policy = {rung: record["policy"][rung] for rung in asked}
            assert policy == {"grace": 2.0, "interrupt": 2.0, "cancel": 1.0, "kill": 2.0}
            assert (record["limits"]["seconds"], record["limits"]["boundaries"]) == (50.0, {"llm": 3})
            without = await started(client, "sleeper")
            assert (await client.get(f"/runs/{without}")).json()["limits"]["seconds"] == 50.0
            assert service.supervisor._core.shut_down() < 20, "what a shutdown takes"


async def test_a_stop_cannot_ask_for_more_grace_than_the_server_gives():
    with served([sleeper], limits=ServerLimits(rung_seconds=2.0)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "sleeper")
            await client.post(f"/runs/{run_id}/stop", json={"grace": 2_592_000, "mode": "cooperative"})
            await client.post("/stops", json={"selector": {"agent": "sleeper"}, "grace": 2_592_000})
            assert (await ended(client, run_id))["stop"]["grace"] == 2.0


async def test_an_owner_has_so_many_live_runs_and_no_more():
    with served([sleeper, worker], limits=ServerLimits(owner_runs=2, owner_processes=1)) as service:
        async with client_of(service) as client:
            first = await started(client, "sleeper", owner="ada", runId="first")
            again = await client.post("/runs", json={"agent": "sleeper", "owner": "ada", "runId": "first"})
            assert again.status_code == 200, again.text
            await started(client, "worker", owner="ada", isolation="process")
            refused = await client.post("/runs", json={"agent": "sleeper", "owner": "ada"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
            assert "2 live runs" in refused.json()["error"]["message"]
            await client.post(f"/runs/{first}/stop", params={"wait": 15})
            refused = await client.post("/runs", json={"agent": "worker", "owner": "ada", "isolation": "process"})
            assert refused.status_code == 429
            assert "1 runs in agent processes" in refused.json()["error"]["message"]
            await started(client, "sleeper", owner="ada")
            await started(client, "sleeper", owner="eve")
            for _ in range(3):
                await started(client, "sleeper")
            await client.post("/stops", json={"selector": {"all": True}, "mode": "kill"})

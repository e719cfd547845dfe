"""G5: every unshielded check or boundary raises while stopped."""

from stoppable.testing.scripts import Check, Effect, Rest, ReturnIfStopping, Swallow


async def test_every_check_and_boundary_raises_again(kind, probe):
    handle = await kind.start([Rest(), Swallow([Check()], 3), Swallow([Effect("never")], 3)], probe)
    await probe.seen("rest rest")
    await handle.stop("cooperative")
    probe.release()
    outcome = await handle.outcome()
    assert probe.notes[2:] == ["swallowed AgentStopped"] * 6
    assert outcome.status == "stopped"


async def test_an_agent_that_asks_and_returns_is_stopped_with_its_value(kind, probe):
    handle = await kind.start([Rest(), ReturnIfStopping("so far")], probe)
    await probe.seen("rest rest")
    await handle.stop()
    probe.release()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result, outcome.clean) == ("stopped", "so far", True)

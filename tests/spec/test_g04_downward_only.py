"""G4: the target and its descendants, children created later included; never the parent, never siblings."""

import stoppable
from stoppable._core.run import Run
from stoppable.testing.scripts import Child, Effect, Return


async def test_a_stop_of_the_root_ends_the_whole_chain(kind, probe):
    handle = await kind.start([Child([Child([Effect("deep"), Effect("never")])])], probe)
    await probe.seen("enter deep")
    await handle.stop()
    probe.release()
    assert (await handle.outcome()).status == "stopped"
    assert probe.entered() == ["deep"]
    assert [node.fate for node in handle.run.receipt.nodes if node.kind == "run"] == ["stopped"] * 3


async def test_a_stop_of_one_child_leaves_parent_and_siblings_alone(kind, probe):
    async with stoppable.open_run("parent") as parent:
        children = [await kind.start([Effect(f"work {n}"), Effect(f"more {n}"), Return(n)], probe) for n in range(3)]
        for n in range(3):
            await probe.seen(f"enter work {n}")
        await children[1].stop()
        probe.release()
        statuses = [(await child.outcome()).status for child in children]
    assert statuses == ["completed", "stopped", "completed"]
    assert parent.status == "completed"
    assert "more 1" not in probe.entered()


def test_a_child_created_after_the_stop_is_born_stopped():
    parent = Run("parent")
    parent._begin(None)
    parent.stop("cooperative", "why")
    child = Run("child", parent)
    grandchild = Run("grandchild", child)
    assert child.token.stopped
    assert grandchild.token.reason.message == "why"
    assert [node.name for node in parent._stop.nodes] == ["parent", "child", "grandchild"]


async def test_a_child_inherits_owner_labels_and_policy():
    policy = stoppable.Policy(grace=1)
    async with stoppable.open_run("parent", owner="ann", labels={"team": "x"}, policy=policy) as parent:
        async with stoppable.open_run("child", labels={"step": "1"}) as child:
            assert (child.owner, child.labels, child.policy) == ("ann", {"team": "x", "step": "1"}, policy)
            assert child.parent is parent
            assert child.root is parent
    assert parent.labels == {"team": "x"}

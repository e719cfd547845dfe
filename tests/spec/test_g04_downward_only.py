"""G4: the target and its descendants, children created later included; never the parent, never siblings."""

import stoppable
from stoppable._core.node import RunNode
from stoppable.testing.participant_suite import (
    test_a_stop_of_one_child_leaves_parent_and_siblings_alone,
    test_a_stop_of_the_root_ends_the_whole_chain,
)

__all__ = [  # what every kind of participant must do, for those of others too
    "test_a_stop_of_one_child_leaves_parent_and_siblings_alone",
    "test_a_stop_of_the_root_ends_the_whole_chain",
]


def test_a_child_created_after_the_stop_is_born_stopped():
    parent = RunNode("parent")
    parent.begin(None)
    parent.stop("cooperative", "why")
    child = RunNode("child", parent)
    grandchild = RunNode("grandchild", child)
    assert child.token.stopped
    assert grandchild.token.reason.message == "why"
    assert [node.name for node in parent.first_stop.nodes] == ["parent", "child", "grandchild"]


async def test_a_child_inherits_owner_labels_and_policy():
    policy = stoppable.Policy(grace=1)
    async with stoppable.open_run("parent", owner="ann", labels={"team": "x"}, policy=policy) as parent:
        async with stoppable.open_run("child", labels={"step": "1"}) as child:
            assert (child.owner, child.labels, child.policy) == ("ann", {"team": "x", "step": "1"}, policy)
            assert child.parent is parent
            assert child.root is parent
    assert parent.labels == {"team": "x"}

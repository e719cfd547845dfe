"""A bulk stop and a hold mean the runs that were selected, and no others."""

import copy
import pickle

import pytest

from stoppable import Supervisor
from stoppable.errors import InvalidArgument, RunHeld

from .kept_agents import forever


async def test_a_run_keeps_the_labels_that_it_was_started_with(store):
    labels = {"team": "a"}
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(forever, labels=labels)
        labels["team"] = "b"
        assert not await supervisor.stop_where(labels={"team": "b"})
        assert handle.run.labels == {"team": "a"}
        assert [receipt.run_id for receipt in await supervisor.stop_where(labels={"team": "a"})] == [handle.id]


async def test_a_hold_keeps_the_labels_that_it_was_placed_with(store):
    labels = {"team": "a"}
    async with Supervisor(store) as supervisor:
        await supervisor.hold(labels=labels)
        labels["team"] = "b"
        with pytest.raises(RunHeld):
            await supervisor.start(forever, labels={"team": "a"})
        handle = await supervisor.start(forever, labels={"team": "b"})
        await handle.stop()


@pytest.mark.parametrize("labels", [{"team": None}, {"team": 1}, {None: "a"}, ["team"], {"team": "a" * 257}])
async def test_labels_that_no_run_can_have_select_none_and_are_an_error(store, labels):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(forever)
        with pytest.raises(InvalidArgument, match="label"):
            await supervisor.stop_where(labels=labels)
        with pytest.raises(InvalidArgument, match="label"):
            await supervisor.hold(labels=labels)
        assert not handle.run.token.stopped
        await handle.stop()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
async def test_what_a_bulk_stop_answers_can_be_copied(store, copied):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(forever, owner="me")
        answered = await supervisor.stop_where(owner="me", hold=True)
        made = copied(answered)
        assert (type(made), made, made.hold) == (type(answered), answered, answered.hold)
        assert [receipt.run_id for receipt in made] == [handle.id]

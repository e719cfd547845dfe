"""What errors say."""

import pytest

from stoppable import Outcome, RunFailed, RunLost, RunStopped


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RunFailed, "failed", "run r1 failed: no"),
        (RunStopped, "stopped", "run r1 was stopped: no"),
        (RunLost, "lost", "run r1 is lost: no"),
    ],
)
def test_a_run_that_did_not_complete_says_how_it_ended(error, status, said):
    assert str(error("r1", Outcome(status=status, error=ValueError("no")))) == said

"""G5: every unshielded check or boundary raises while stopped."""

from stoppable.testing.participant_suite import (
    test_an_agent_that_asks_and_returns_is_stopped_with_its_value,
    test_every_check_and_boundary_raises_again,
)

__all__ = [  # what every kind of participant must do, for those of others too
    "test_an_agent_that_asks_and_returns_is_stopped_with_its_value",
    "test_every_check_and_boundary_raises_again",
]

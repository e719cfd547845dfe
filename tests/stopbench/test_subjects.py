"""A subject that lies and one that is perfect get exactly the scores that they deserve, through real processes."""

import sys
from pathlib import Path

import pytest

from stopbench.judge import SCORES, judge
from stopbench.scenarios import SCENARIOS
from stopbench.trial import Spec, start

SUBJECTS = Path(__file__).parent / "subjects"
TRIED = [name for name, scenario in SCENARIOS.items() if not scenario.ends_server]
GOES_ON = ["effects after", "tokens after", "begun", "state", "next turn"]
LIES = {
    "model call": GOES_ON,
    "stream": ["tokens after", "state", "kept"],
    "sync tool": GOES_ON,
    "async tool": GOES_ON,
    "subprocess tree": ["effects after", "processes left", "state", "next turn"],
    "parallel tools": [*GOES_ON, "kept"],
    "sub-agent": GOES_ON,
    "before the start": GOES_ON,
    "last moment": [],
    "double stop": [*GOES_ON, "kept"],
}
LATER = {"subprocess tree": ["tokens after", "begun"]}
"""What is wrong too if the machine is so slow that the commands end while the harness still watches."""
BUSY = {"seconds"}
"""The only score that a busy machine may spoil."""


def scores_of(name, scenario):
    spec = Spec(
        python=sys.executable,
        file=str(SUBJECTS / f"{name}.py"),
        variant="plain",
        sub_agent="task",
        trials=((scenario, "1"),),
    )
    [seen] = start(spec)
    assert seen.failure == ""
    return judge(seen)


@pytest.mark.parametrize("scenario", TRIED)
def test_the_perfect_subject_has_no_mistake(scenario):
    scores = scores_of("perfect", scenario)
    assert {name: score.words for name, score in scores.items() if score.is_wrong and name not in BUSY} == {}
    assert scores.keys() >= SCORES.keys() - {"processes left", "kept"}


@pytest.mark.parametrize("scenario", TRIED)
def test_the_liar_is_caught_in_each_lie(scenario):
    wrong = [name for name, score in scores_of("liar", scenario).items() if score.is_wrong and name not in BUSY]
    assert [name for name in wrong if name not in LATER.get(scenario, [])] == LIES[scenario]


def test_a_subject_that_cannot_be_imported_is_not_measured(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import no_such_package\n")
    spec = Spec(python=sys.executable, file=str(file), variant="plain", sub_agent=None, trials=(("stream", "1"),))
    [seen] = start(spec)
    assert "no_such_package" in seen.failure

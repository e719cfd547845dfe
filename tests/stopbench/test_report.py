"""The command line, and the table as Markdown, JSON and HTML."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stopbench import environments, report, results
from stopbench.__main__ import main
from stopbench.environments import describe
from stopbench.judge import Score
from stopbench.results import Results
from stopbench.scenarios import SCENARIOS

PERFECT = Path(__file__).parent / "subjects/perfect.py"


@pytest.fixture
def found():
    found = Results(facts={"Date": "2026-11-19"})
    found.subjects["ann"] = {"about": "An agent.", "cancel": "`task.cancel()`", "versions": {"ann": "1.0"}}
    right, wrong = Score(value=0, is_wrong=False), Score(value=5, is_wrong=True, words="5 effects after the end")
    refused = Score(value="refused", is_wrong=True, words="next turn: refused")
    times = {"effects": [-0.1, 0.1], "tokens": [-0.5], "requests": [-0.6], "reported": 0.01}
    cell = found.cell("ann", "plain", "sync tool")
    cell.trials, cell.times = [{"effects after": wrong, "next turn": refused}, {"effects after": right}], times
    cell = found.cell("ann", "stoppable", "sync tool")
    cell.trials, cell.times = [{"effects after": right}], times
    cell.gaps = [0.01, 0.02, 0.4]
    found.cell("ann", "plain", "stream").failures.append("it <never> began")
    return found


def test_a_cell_of_the_table_names_every_score_that_is_wrong_and_what_flips(found):
    text = report.markdown(found)
    [header, plain, ours] = [line for line in text.splitlines() if line.startswith("| ")][:3]
    column = [cell.strip() for cell in header.split("|")].index("sync tool")
    assert plain.split("|")[column].strip() == "**E↔ N**"
    assert ours.split("|")[column].strip() == "ok"
    assert "not measured: it <never> began" in text
    assert "own cancel\n\nNowhere.\n" in text
    assert "- ann, plain, sync tool: effects after\n" in text
    assert "(ann 1.0)" in text
    assert "busy: 0.02 s in most trials, 0.40 s in one" in text


def test_what_is_wrong_with_stoppable_only_is_listed(found):
    cell = found.cell("ann", "stoppable", "sync tool")
    cell.trials.append({"seconds": Score(value=9.0, is_wrong=True, words="took 9.0 s")})
    assert list(found.worse()) == ["ann, stoppable, sync tool: took 9.0 s"]


def test_the_page_is_one_file_and_escapes_what_subjects_say(found):
    text = report.page(found)
    assert "src=" not in text
    assert "http" not in text
    assert "<never>" not in text
    assert text.count("<svg") == 2, "one time line for each cell that was measured"
    HTMLParser().feed(text)


def test_the_results_survive_their_way_through_a_file(found, tmp_path):
    results.write(tmp_path / "results.json", found)
    assert results.read(tmp_path / "results.json") == found
    assert results.read(tmp_path / "none.json") == Results()


def test_report_writes_what_it_is_asked_for(found, tmp_path):
    results.write(tmp_path / "results.json", found)
    main(
        [
            "report",
            str(tmp_path / "results.json"),
            "--markdown",
            str(tmp_path / "a.md"),
            "--html",
            str(tmp_path / "a.html"),
        ]
    )
    assert (tmp_path / "a.md").read_text() == report.markdown(found)
    assert (tmp_path / "a.html").read_text() == report.page(found)


def test_each_subject_of_the_package_is_described_without_its_framework_and_has_less_than_80_lines():
    assert len(environments.names()) >= 12
    for name in environments.names():
        subject = environments.find(name)
        assert subject.about.endswith(".")
        assert subject.packages
        assert len(subject.file.read_text().splitlines()) < 80


def test_the_attributes_of_a_subject_are_read_from_its_file():
    subject = environments.find("smolagents")
    assert (subject.cancel, subject.final_tool) == ("`agent.interrupt()`", "final_answer")
    assert environments.find("mcp").serves
    assert describe(PERFECT).sub_agent == "task"


def test_an_unknown_subject_is_refused_with_the_names_of_those_that_there_are():
    with pytest.raises(LookupError, match=r"No subject 'nobody'.*asyncio"):
        environments.find("nobody")


def test_run_measures_a_file_and_adds_to_its_results(tmp_path):
    environment = tmp_path / "environments/perfect/bin"
    environment.mkdir(parents=True)
    (environment / "python").symlink_to(sys.executable)
    command = [
        sys.executable,
        "-m",
        "stopbench",
        "run",
        "--subject",
        str(PERFECT),
        "--variant",
        "plain",
        "--repeat",
        "1",
    ]
    command += ["--environments", str(tmp_path / "environments"), "--as-installed", "--json"]
    command += ["--output", str(tmp_path / "results.json")]
    for scenario in ("last moment", "before the start"):
        done = subprocess.run(
            [*command, "--scenario", scenario], capture_output=True, text=True, timeout=100, check=True, cwd=tmp_path
        )
    cells = json.loads(done.stdout)["cells"]
    assert [(cell["scenario"], len(cell["trials"])) for cell in cells] == [("last moment", 1), ("before the start", 1)]
    assert {cell["scenario"] for cell in cells} <= SCENARIOS.keys()

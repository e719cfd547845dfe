"""`.ci/suites` chooses what concerns a change, and gives every suite its turn within the time of a landing."""

import importlib.machinery
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
RUN = (ROOT / ".ci/run").read_text()
# too long for a landing, a part of another target, or about tests that are known to fail
BY_HAND = {
    "test-crewai",
    "test-stopbench",
    "test-transformers",
    "test-a2a-conformance",
    "test-flaky",
    "test-host",
    "test-instrumented",
    "test-langgraph-upstream",
    "test-ui-random",
    "test-mutants-all",
    "test-openhands-upstream",
    "test-version",
}


@pytest.fixture(scope="module")
def suites():
    loader = importlib.machinery.SourceFileLoader("ci_suites", str(ROOT / ".ci/suites"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("ci_suites", loader))
    sys.modules["ci_suites"] = module
    loader.exec_module(module)
    yield module
    del sys.modules["ci_suites"]


@pytest.fixture
def choose(suites):
    def choose(*files, turn=0, **change):
        return suites.choose(suites.SUITES, suites.Change(files=files, **change), turn)

    return choose


def minutes(suites, names):
    return sum(suite.minutes for suite in suites.SUITES if suite.name in names)


def every_target(suites):
    return {*suites.targets_of(MAKEFILE), *(suite.name for suite in suites.suites.SUITES)}


def by_themselves(chosen):
    return {name for name, reason in chosen.items() if not reason.startswith("its turn")}


def test_a_change_of_one_adapter_chooses_its_suite(choose):
    assert by_themselves(choose("src/stoppable/adapters/adk/turns.py", "CHANGELOG.md")) == {"test-adk"}


def test_a_change_of_its_tests_chooses_a_suite(choose):
    assert by_themselves(choose("tests/adapters/langgraph/test_serving.py")) == {"test-langgraph"}


def test_a_change_of_what_some_adapters_share_chooses_those(choose):
    assert by_themselves(choose("src/stoppable/adapters/_shared.py")) == {"test-adk", "test-langgraph"}


def test_a_folder_does_not_stand_for_another_that_begins_with_its_name(choose):
    assert by_themselves(choose("src/stoppable/adapters/a2a_langgraph/executor.py")) == {"test-langgraph"}


def test_a_change_of_its_dependencies_or_its_target_chooses_a_suite(choose):
    assert by_themselves(choose("pyproject.toml", needs={"openhands-server"})) == {"test-openhands"}
    assert by_themselves(choose("Makefile", targets={"model", "soak"})) == {"model"}


def test_a_change_of_the_docs_chooses_no_suite_but_those_whose_turn_it_is(choose):
    assert by_themselves(choose("docs/glossary.md")) == set()


@pytest.mark.parametrize("file", ["_core/node.py", "_engine/edge.py", "supervisor/core.py", "errors.py"])
def test_a_change_of_what_everything_rests_on_chooses_versions_and_mutants_and_a_longer_turn(suites, choose, file):
    for turn in range(len(suites.SUITES)):
        chosen = choose(f"src/stoppable/{file}", turn=turn)
        assert by_themselves(chosen) == {"test-versions", "test-mutants"}
        assert len(chosen) > len(choose(turn=turn))
        assert suites.ALWAYS + minutes(suites, chosen) <= suites.LIMIT


def test_every_suite_has_its_turn_once_in_a_round(suites, choose):
    parts = [list(choose(turn=turn)) for turn in range(len(suites.divide(suites.SUITES)))]
    assert [name for part in parts for name in part] == [suite.name for suite in suites.SUITES]
    assert all(minutes(suites, part) <= suites.PART or len(part) == 1 for part in parts)
    assert list(choose(turn=len(parts))) == parts[0], "then the next round begins"


def test_many_more_suites_make_no_landing_longer(suites):
    more = [suites.Suite(name=f"test-{number}", minutes=3, paths=(f"tests/{number}/",)) for number in range(100)]
    every = (*suites.SUITES, *more)
    for turn in range(60):
        chosen = suites.choose(every, suites.Change(files=["src/stoppable/_core/node.py"]), turn)
        assert suites.ALWAYS + sum(suite.minutes for suite in every if suite.name in chosen) <= suites.LIMIT


def test_what_has_changed_itself_is_chosen_also_if_it_takes_too_long(suites, choose):
    paths = [suite.paths[0] + "x" for suite in suites.SUITES if suite.paths and suite.paths[0].endswith("/")]
    assert {suite.name for suite in suites.SUITES if suite.paths and suite.paths[0].endswith("/")} <= by_themselves(
        choose(*paths)
    )


def test_a_landing_that_would_take_too_long_leaves_older_packages_to_another(suites):
    every = {suite.name for suite in suites.SUITES}
    repeating = {suite.name for suite in suites.SUITES if suite.older}
    assert suites.shortened(suites.SUITES, ["test-adk"], 0) == set()
    few = [suites.Suite(name=f"test-{number}", minutes=2, older=1) for number in range(26)]
    turns = [suites.shortened(few, {suite.name for suite in few}, turn) for turn in range(26)]
    for short in turns:
        assert suites.ALWAYS + 2 * len(few) - len(short) <= suites.LONGEST
    assert not set.intersection(*turns), "each is run as a whole in some landing"
    assert suites.shortened(suites.SUITES, every, 3) <= repeating
    assert all(len(suite.steps) != 1 and suite.older < suite.minutes for suite in suites.SUITES if suite.older)


def test_the_same_change_is_always_answered_with_the_same_suites(choose):
    assert choose("src/stoppable/_core/node.py", turn=5) == choose("src/stoppable/_core/node.py", turn=5)


def test_every_suite_of_the_makefile_is_always_run_or_takes_its_turn(suites):
    always = set(re.findall(r"^step make ([\w-]+)", RUN, re.MULTILINE))
    targets = {name for name in every_target(suites) if re.match(r"test(-|$)|(model|release)$", name)}
    assert {suite.name for suite in suites.SUITES} | always & targets | BY_HAND == targets


def test_every_path_and_dependency_that_chooses_a_suite_exists(suites):
    paths = {path for suite in suites.SUITES for path in suite.paths} | set(suites.SHARED)
    assert [
        path for path in sorted(paths) if not (ROOT / path).exists() or (ROOT / path).is_dir() != (path[-1] == "/")
    ] == []
    needs = suites.needs_of((ROOT / "pyproject.toml").read_text())
    assert {need for suite in suites.SUITES for need in suite.needs} <= needs.keys()


def test_a_target_is_its_text_up_to_the_next_empty_line(suites):
    targets = suites.targets_of("a-2: b ## words\n\tone\n\ttwo\n\nNAME := x\n\nb:\n\tthree\n")
    assert targets == {"a-2": "a-2: b ## words\n\tone\n\ttwo\n", "b": "b:\n\tthree\n"}


def test_make_help_lists_every_target_that_is_explained(suites):
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    parts = {"host-environment", "test-version"}  # of other targets
    assert sorted(line.split()[0] for line in listed.stdout.splitlines()) == sorted(every_target(suites) - parts)


@pytest.fixture
def clone(tmp_path):
    """A repository whose last landing was one commit ago."""

    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    (tmp_path / ".ci").mkdir()
    (tmp_path / "tools").mkdir()
    for name in (".ci/suites", "pyproject.toml", "Makefile", "tools/suites.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "landed")
    (tmp_path / ".ci/landed").write_text(git("rev-parse", "HEAD"))
    git("add", ".")
    git("commit", "-qm", "the next one")
    return tmp_path


def chosen_in(clone, *arguments):
    command = [sys.executable, clone / ".ci/suites", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


def test_it_reads_the_change_from_the_history(clone, suites):
    for name, text in {"Makefile": "model: ## model-check", "tools/suites.py": 'about="keep runs'}.items():
        assert text in (clone / name).read_text()
        (clone / name).write_text((clone / name).read_text().replace(text, text + " and"))
    pyproject = clone / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"tqdm>=', '"tqdm>'))
    names, reasons = chosen_in(clone)
    assert re.search(r"^model +what it runs has changed", reasons, re.MULTILINE)
    assert re.search(r"^test-fleet +what it runs has changed", reasons, re.MULTILINE)
    assert re.search(r"^test-libraries +'libraries' in pyproject", reasons, re.MULTILINE)
    assert names == [name for name in (suite.name for suite in suites.SUITES) if name in names]
    assert len(names) < len(suites.SUITES)


def test_without_the_landed_commit_every_suite_is_chosen(clone, suites):
    (clone / ".ci/landed").write_text("0" * 40)
    names, reasons = chosen_in(clone)
    assert [name.removesuffix(":newest") for name in names] == [suite.name for suite in suites.SUITES]
    assert "not in this history" in reasons
    assert re.search(r"^test-versions .*; newest packages only$", reasons, re.MULTILINE)


def test_every_suite_can_be_asked_for(clone, suites):
    assert chosen_in(clone, "all")[0] == [suite.name for suite in suites.SUITES]

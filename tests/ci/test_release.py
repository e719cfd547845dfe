"""What `make release` refuses, what is in the wheel, and what the workflow that publishes it may do.

`make release` itself, which installs the wheel in empty environments, is a suite of its own.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import stoppable

ROOT = Path(__file__).parents[2]
VERSIONED = ("CHANGELOG.md", "README.md", "js/stoppable-button/package.json", "src/stoppable/__init__.py")
WORKFLOW = (ROOT / ".github/workflows/release.yml").read_text()
SECONDS = 300  # only a defect takes so long

pytestmark = pytest.mark.timeout(2 * SECONDS)  # the first test of each process builds the wheel


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("release_tool", ROOT / "tools/release.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["release_tool"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["release_tool"]


@pytest.fixture(scope="module")
def built(release, tmp_path_factory):
    return release.build(tmp_path_factory.mktemp("built") / "dist")


@pytest.fixture(scope="module")
def known(release):
    """The files that git knows, and those that a change has added."""
    added = release.call("git", "ls-files", "-z", "--others", "--exclude-standard", cwd=ROOT)
    return {name for name in {*release.list_tracked(), *added.split("\0")} if name and (ROOT / name).exists()}


@pytest.fixture
def ready(tmp_path):
    """The files that have the version, as they are when 1.2.3 is released."""
    for name in VERSIONED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    replace(tmp_path / "src/stoppable/__init__.py", r'(?<=^__version__ = ").*(?="$)', "1.2.3")
    replace(tmp_path / "js/stoppable-button/package.json", r'(?<="version": ").*(?=",$)', "1.2.3")
    replace(tmp_path / "CHANGELOG.md", r"^## \S+ \(.*\)$", "## 1.2.3 (2027-01-02)")
    replace(tmp_path / "README.md", "not yet on PyPI", "on PyPI")
    return tmp_path


def replace(path, pattern, text):
    path.write_text(re.sub(pattern, text, path.read_text(), count=1, flags=re.MULTILINE))


def test_what_has_a_version_here_has_the_same(release):
    assert release.find_version(ROOT) == stoppable.__version__
    assert release.list_mistakes(ROOT, None) == []


def test_what_is_ready_for_its_tag_is_not_refused(release, ready):
    assert release.list_mistakes(ready, "v1.2.3") == []


@pytest.mark.parametrize(
    ("name", "pattern", "text", "refusal"),
    [
        ("js/stoppable-button/package.json", r"1\.2\.3", "1.2.2", "package.json says 1.2.2, .* 1.2.3"),
        ("CHANGELOG.md", r"1\.2\.3", "1.2.2", "CHANGELOG.md is 1.2.2, .* 1.2.3"),
        ("CHANGELOG.md", "2027-01-02", "not released yet", "1.2.3 is not released yet: write the date"),
        ("README.md", "on PyPI", "not yet on PyPI", "README.md says 'not yet on PyPI'"),
        ("src/stoppable/__init__.py", r"1\.2\.3", "1.2.4", "the tag is v1.2.3, .* says 1.2.4"),
    ],
)
def test_what_is_not_ready_for_its_tag_is_refused(release, ready, name, pattern, text, refusal):
    replace(ready / name, pattern, text)
    assert re.search(refusal, "\n".join(release.list_mistakes(ready, "v1.2.3")))


def test_without_a_tag_it_may_be_unreleased(release, ready):
    replace(ready / "CHANGELOG.md", "2027-01-02", "not released yet")
    replace(ready / "README.md", "on PyPI", "not yet on PyPI")
    assert release.list_mistakes(ready, None) == []


def test_a_mismatch_is_refused_before_anything_is_built():
    command = [sys.executable, str(ROOT / "tools/release.py")]
    environment = {**os.environ, "TAG": "v999"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: the tag is v999, src/stoppable/__init__.py says {stoppable.__version__}: " in done.stderr


def test_the_wheel_is_the_package_and_nothing_else(release, built, known):
    assert release.list_strangers(built, known) == []
    assert {"stoppable/py.typed", "stoppable/server/ui/index.html", "stoppable/server/ui/app.js"} <= built.in_wheel
    assert not [name for name in built.in_wheel if release.TEST.search(name)]
    assert "tests/conftest.py" in built.in_source, "who packages it can test it"


def test_a_file_too_many_and_one_too_few_are_found(release, built, known, tmp_path):
    wheel = tmp_path / built.wheel.name
    with zipfile.ZipFile(built.wheel) as whole, zipfile.ZipFile(wheel, "w") as changed:
        for name in whole.namelist():
            if name != "stoppable/py.typed":
                changed.writestr(name, whole.read(name))
        changed.writestr("stoppable/tests/test_secret.py", "")
    assert release.list_strangers(release.Built(wheel=wheel, source=built.source), known) == [
        "the wheel has stoppable/tests/test_secret.py, which git does not know",
        "the wheel lacks stoppable/py.typed",
        "the wheel has the test stoppable/tests/test_secret.py",
    ]


def test_the_wheel_has_the_version_of_the_code_and_needs_nothing(built):
    with zipfile.ZipFile(built.wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    assert f"\nVersion: {stoppable.__version__}\n" in text
    required = re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)
    assert required
    assert [package for package in required if "extra ==" not in package] == []


@pytest.mark.parametrize(
    ("files", "environment", "typed"),
    [
        ([], {"UV": "/bin/uv"}, 'uvx --from "stoppable[all] @ {wheel}" stoppable ls --owner ann'),
        (["uv-receipt.toml"], {}, 'uvx --from "stoppable[all] @ {wheel}" stoppable ls --owner ann'),
        (["pipx_metadata.json"], {}, 'pipx run --spec "stoppable[all] @ {wheel}" stoppable ls --owner ann'),
        ([], {}, 'pip install "stoppable[cli] @ {wheel}"'),
        ([], {"UV": "/bin/uv", "VIRTUAL_ENV": "{here}"}, 'pip install "stoppable[cli] @ {wheel}"'),
    ],
    ids=["uvx", "uv tool install", "pipx", "an environment", "uv run"],
)
def test_without_its_extra_the_command_says_what_to_type(built, tmp_path, files, environment, typed):
    """The wheel is installed alone, in an environment with the marks that uvx, uv and pipx leave in theirs."""
    here = tmp_path / "environment"
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, here], check=True)
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", here / "bin/python", built.wheel], check=True, stderr=subprocess.PIPE
    )
    for name in files:
        (here / name).touch()
    inherited = {name: value for name, value in os.environ.items() if name not in {"UV", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [here / "bin/stoppable", "ls", "--owner", "ann"],
        cwd=tmp_path,
        env=inherited | {name: value.format(here=here) for name, value in environment.items()},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    wanted = typed.format(wheel=built.wheel.as_uri())
    sentence = "error: the command line needs typer, which is not installed: "
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{sentence}{wanted}\n")


def test_only_the_job_that_publishes_may_say_who_it_is_and_none_may_write():
    workflow = yaml.safe_load(WORKFLOW)
    assert workflow[True] == {"push": {"tags": ["v*"]}}, "YAML reads `on` as true"
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }


def test_the_job_that_publishes_executes_nothing_of_the_project():
    publish = yaml.safe_load(WORKFLOW)["jobs"]["publish"]
    assert publish["environment"] == "pypi"
    assert publish["needs"] == "build"
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    assert "secrets." not in WORKFLOW


def test_every_action_is_a_commit_with_its_version_beside_it():
    used = re.findall(r"uses: (.*)", WORKFLOW)
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


def test_the_workflow_builds_with_the_tag_and_publishes_packages_only():
    [build] = [step for step in yaml.safe_load(WORKFLOW)["jobs"]["build"]["steps"] if "run" in step]
    assert build == {"run": "make release", "env": {"TAG": "${{ github.ref_name }}"}}
    assert "name: packages\n          path: |\n            dist/*.whl\n            dist/*.tar.gz\n" in WORKFLOW

"""The steps of the Dockerfile make a server that is process 1, is not root, and writes where it may only.

There is no container engine: the steps are carried out in an empty folder, and namespaces of the kernel stand for the
container.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest
from tests.ports import held_port

from .files import ROOT, SECONDS, wait_until
from .running import HEADERS, KEY
from .test_manifests import instructions, last

pytestmark = pytest.mark.timeout(1800)  # the packages come from an index

ABSOLUTE = re.compile(r"(?<![\w.])/(?=(?:app|opt|run|source)\b)")
CONTAINER = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
AS_ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user")
INSIDE = """
set -eu
mount --bind "$IMAGE" "$IMAGE"
mount -o remount,bind,ro "$IMAGE"
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777 tmpfs "$IMAGE/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$IMAGE/run/stoppable"
cd "$IMAGE/app"
exec unshare --user --map-user="$OWNER" --map-group="$GROUP" "$@"
"""


class Image:
    """What the steps have made, in one folder: all stages have their paths there."""

    def __init__(self, folder):
        self.folder = folder
        self._here = ROOT
        for instruction, words in instructions():
            step = getattr(self, f"_{instruction.lower()}", None)
            if step is not None:
                step(words)
        (folder / "tmp").mkdir()
        [path] = [word for word in last("ENV").split() if word.startswith("PATH=")]
        self.programs = Path(self.inside(path.removeprefix("PATH=").partition(":")[0]))
        self.command = [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]

    def inside(self, words):
        """Return a command or a path of the image as it is here."""
        return ABSOLUTE.sub(f"{self.folder}/", words)

    def _workdir(self, words):
        self._here = Path(self.inside(words))
        self._here.mkdir(parents=True, exist_ok=True)

    def _copy(self, words):
        *sources, target = shlex.split(words)
        if sources[0].startswith("--from="):
            assert sources[1:] == [target], "one folder stands for all stages"
            return
        for source in sources:
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, self._here / target, ignore=ignored)
            else:
                shutil.copy(ROOT / source, self._here / target)

    def _run(self, words):
        command = re.sub(r"^--mount=\S+ ", "", words)
        command = re.sub(
            r" -[og] \d+", "", command
        )  # the user of the image is the one of the tests, with another number
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        quick = {"PIP_NO_COMPILE": "1"}  # the image is to start fast; here most of what is compiled is never executed
        done = subprocess.run(
            ["sh", "-euc", self.inside(command)],
            cwd=self._here,
            env={**os.environ, **quick, "PATH": path},
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def image():
    folder = Path(tempfile.mkdtemp(prefix="stoppable-image-"))
    try:
        yield Image(folder)
    finally:
        shutil.rmtree(folder)


def namespaces_work():
    command = [*CONTAINER, *AS_ROOT, "sh", "-c", "mount -o remount,bind,ro / && unshare --user --map-user=10001 true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0
    except OSError:
        return False


def child_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else None


def test_the_image_has_what_a_replica_needs_and_nothing_of_the_tests(image):
    installed = image.programs.parent.glob("lib/python3.*/site-packages/*.dist-info")
    names = {folder.name.partition("-")[0] for folder in installed}
    assert {"stoppable", "uvicorn", "psycopg", "psycopg_binary", "prometheus_client"} <= names
    assert not {"pytest", "hypothesis"} & names
    assert [path.name for path in (image.folder / "app").iterdir()] == ["agents.py"]


@pytest.mark.skipif(not namespaces_work(), reason="PROCESS 1 WAS NOT TESTED: this user may not make namespaces")
def test_as_process_1_it_is_ready_and_drains_within_its_time_on_sigterm(image, database, tmp_path):
    url = f"{database.url}?schema=image&locks={image.folder}/run/stoppable/locks"
    (tmp_path / "store").write_text(url)
    (tmp_path / "key").write_text(KEY)
    owner, group = last("USER").split(":")
    with held_port() as port:
        command = [*image.command, "--port", str(port)]
        command[command.index("0.0.0.0")] = "127.0.0.1"
        command[0] = str(image.programs / command[0])
        environment = {
            "PATH": f"{image.programs}:{os.environ['PATH']}",
            "HOME": f"{image.folder}/tmp",
            "TMPDIR": f"{image.folder}/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            "STOPPABLE_STORE_FILE": str(tmp_path / "store"),
            "STOPPABLE_API_KEY_FILE": str(tmp_path / "key"),
            "IMAGE": str(image.folder),
            "OWNER": owner,
            "GROUP": group,
        }
        log = tmp_path / "log"
        with log.open("wb") as output:
            container = subprocess.Popen(
                [*CONTAINER, *AS_ROOT, "sh", "-c", INSIDE, "sh", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS, headers=HEADERS) as http:
                wait_until(lambda: is_ready(container, http, log))
                server = Path(f"/proc/{child_of(container)}")
                status = (server / "status").read_text()
                assert re.search(r"^NSpid:.*\t1$", status, re.MULTILINE), status
                assert (server / "uid_map").read_text().split()[0] == owner
                assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE), "it has no power that root has"
                mounts = [line.split() for line in (server / "mountinfo").read_text().splitlines()]
                places = {place: options for _, _, _, _, place, options, *_ in mounts}
                assert places["/"].startswith("ro,")
                assert places[str(image.folder)].startswith("ro,")
                health = health_check(image, port)
                assert healthy(health, environment)

                answer = http.post("/runs", json={"agent": "count", "input": {"seconds": 3600}})
                assert answer.status_code == 201, answer.text
                run = answer.json()["id"]
                wait_until(lambda: http.get(f"/runs/{run}").json()["status"] == "running")
                os.kill(child_of(container), 15)
                # It ends with another code if it needs longer than what docs/operations.md promises; test_manifests.py
                # compares that with the time that Compose, Kubernetes and systemd give it.
                assert container.wait(SECONDS) == 0, log.read_text()
            assert not healthy(health, environment)
        finally:
            container.kill()
            container.wait(SECONDS)
    shown = subprocess.run(
        [image.programs / "stoppable", "show", run, "--store", url, "--json"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    record = json.loads(shown.stdout)["run"]
    assert (record["status"], record["outcome"]["reason"]["kind"]) == ("stopped", "shutdown")


def is_ready(container, http, log):
    assert container.poll() is None, log.read_text()
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def health_check(image, port):
    command = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert ":8420/" in command[-1]
    return [str(image.programs / command[0]), *command[1:-1], command[-1].replace(":8420/", f":{port}/")]


def healthy(command, environment):
    return subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS, check=False).returncode == 0

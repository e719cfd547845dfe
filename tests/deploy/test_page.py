"""What docs/how-to/deploy.md tells to type works, or names files that are there."""

import re
import shutil
import subprocess

import pytest

from .files import DEPLOY, PAGE, ROOT, SECONDS, program

BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SECRETS = BLOCKS[0][1]
NOT_HERE = re.compile(r"(docker|echo|kubectl|sudo (/opt/stoppable/bin/pip|chown|install|python3|systemctl)) ")


def test_the_secrets_are_those_that_compose_and_nginx_read(tmp_path):
    program("openssl")
    for file in DEPLOY.iterdir():
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        ["bash", "-euc", SECRETS], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    secrets = tmp_path / "secrets"
    assert len((secrets / "key").read_text().strip()) == 64
    password = (secrets / "postgres-password").read_text().strip()
    store = (secrets / "store").read_text().strip()
    assert store == f"postgresql://stoppable:{password}@postgres/stoppable?locks=/run/stoppable/locks"
    used = (tmp_path / "compose.yaml").read_text() + (tmp_path / "nginx.conf").read_text().replace(
        "/etc/nginx/tls", "./secrets/tls"
    )
    named = set(re.findall(r"\./(secrets/[\w./-]+\w)", used)) - {"secrets/tls"}
    made = {str(file.relative_to(tmp_path)) for file in secrets.rglob("*") if file.is_file()}
    assert made == named


@pytest.mark.parametrize("name", ["key", "cert"])
def test_git_does_not_take_the_secrets(name):
    done = subprocess.run(["git", "check-ignore", "-q", f"deploy/secrets/{name}"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_the_other_commands_name_files_that_are_there():
    """They need Docker, a cluster or systemd, which are not here."""
    unit = (DEPLOY / "stoppable.service").read_text()
    for language, code in BLOCKS[1:]:
        assert language == "sh"
        for line in code.splitlines():
            assert re.match(
                r"(sudo (chown|python3|/opt/stoppable/bin/pip|install|systemctl)|docker|kubectl|echo) ", line
            ), line
            for file in re.findall(r"(?<![\w/])(?:deploy/)?[\w-]+\.(?:py|yaml|service)\b", line):
                assert (DEPLOY / file.removeprefix("deploy/")).exists(), line
            for file in re.findall(r"(?:deploy/)?(secrets/\w+)", line):
                assert f"> {file}\n" in SECRETS, line
            for place in re.findall(r"/(?:etc/stoppable|opt|srv|var/lib)/[\w./-]+", line):
                assert place.split("/bin/")[0].removesuffix("/runs.db").removesuffix("/agents.py") in unit, line


def test_every_file_of_deploy_is_named():
    names = {path.name for path in DEPLOY.iterdir() if path.is_file()}
    operations = (ROOT / "docs/operations.md").read_text()
    told = {name for name in names if name in PAGE.read_text() or name in operations}
    assert names - told <= {"Dockerfile.dockerignore", "compose.yaml"}, "Docker finds these by itself"

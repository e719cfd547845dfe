"""What is wrong in a file of deploy/ and cannot be seen by running it here is found by rules."""

import json
import re
import shlex
import subprocess

import kubernetes_validate
import pytest
import yaml

import stoppable

from .files import DEPLOY, SECONDS, changed, program

DOCUMENTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
KINDS = {document["kind"]: document for document in DOCUMENTS}
POD = KINDS["Deployment"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
REPLICAS = {name: service for name, service in SERVICES.items() if name.startswith("replica-")}
UNIT = (DEPLOY / "stoppable.service").read_text()

policy = stoppable.Policy()
DRAIN = policy.total(stoppable.Mode.GRACEFUL) + 5 + 3 + 2
"""The seconds that docs/operations.md asks for with the default policy."""


def instructions(file=DEPLOY / "Dockerfile"):
    """Return the instructions of a Dockerfile, with their words."""
    lines = file.read_text().replace("\\\n", " ").splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]


def last(name):
    return [words for instruction, words in instructions() if instruction == name][-1]


# --- the image -------------------------------------------------------------------------------------------------------


def test_the_image_has_a_base_with_a_version_and_no_root():
    for instruction, words in instructions():
        if instruction == "FROM":
            assert re.fullmatch(r"[\w./-]+:\d[\w.-]*( AS \w+)?", words), f"{words}: it may be another one tomorrow"
    assert re.fullmatch(r"\d+:\d+", last("USER")), "Kubernetes compares numbers"
    assert not last("USER").startswith("0")


def test_the_server_is_process_1_of_the_image_and_gets_the_signal_itself():
    for name in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(last(name)), list), "a shell in front of it would keep the signal"
    assert last("STOPSIGNAL") == "SIGTERM"


def test_the_image_adds_copies_and_sets_nothing_that_it_should_not():
    names = [name for name, _ in instructions()]
    assert "ADD" not in names
    assert names.index("USER") > max(n for n, name in enumerate(names) if name in {"RUN", "COPY"}), "files are root's"
    text = (DEPLOY / "Dockerfile").read_text()
    assert not re.search(r"(?i)(api_key|password|secret|token)\w*=", text)
    assert not re.search(r"\b(sudo|apt-get|curl|wget|chmod 777)\b", text)
    for instruction, words in instructions():
        assert instruction != "WORKDIR" or words.startswith("/")


def test_the_image_is_given_what_it_copies_and_nothing_else():
    allowed = {
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    copied = set()
    for instruction, words in instructions():
        if instruction == "COPY" and "--from=" not in words:
            copied |= set(shlex.split(words)[:-1])
    assert copied == allowed


def test_the_user_of_the_image_is_the_one_of_the_manifests_and_owns_the_locks():
    user, group = last("USER").split(":")
    made = f"install -d -m 0700 -o {user} -g {group} /run/stoppable"
    assert ("RUN", made) in instructions()
    context = POD["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))
    assert context["fsGroup"] == int(group), "it may read the secrets, and write to its volumes"


# --- compose ---------------------------------------------------------------------------------------------------------


def test_compose_has_two_replicas_that_differ_in_their_names_only():
    assert len(REPLICAS) == 2
    first, second = REPLICAS.values()
    assert first == second
    for proxy in ("nginx.conf", "Caddyfile"):
        named = re.findall(r"[\w-]+:8420", (DEPLOY / proxy).read_text())
        assert named == [f"{name}:8420" for name in REPLICAS]


def test_a_replica_of_compose_may_do_little_and_has_time_to_end():
    for service in REPLICAS.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["tmpfs"] == ["/tmp"]
        assert "ports" not in service, "only the proxy is reached from outside"
        assert seconds(service["stop_grace_period"]) >= DRAIN
        assert service["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_what_compose_names_is_there():
    assert set(COMPOSE["volumes"]) == {"database", "workers"}
    for service in SERVICES.values():
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or source == "./secrets/tls" or (DEPLOY / source).exists(), source
        for name, value in service.get("environment", {}).items():
            if name.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"]
    assert SERVICES["postgres"]["networks"] == ["inside"]
    assert COMPOSE["networks"]["inside"]["internal"] is True


def test_no_image_of_compose_changes_by_itself():
    for name, service in SERVICES.items():
        assert name in REPLICAS or re.fullmatch(r"[\w/]+:\d[\w.-]*", service["image"])


def seconds(text):
    return int(text.removesuffix("s"))


# --- Kubernetes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize("document", DOCUMENTS, ids=[document["kind"] for document in DOCUMENTS])
def test_a_manifest_has_the_fields_that_its_kind_has(document, version):
    kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_a_kind_does_not_have_is_found():
    wrong = {**KINDS["Service"], "spec": {**KINDS["Service"]["spec"], "selectr": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_every_selector_selects_the_pods():
    labels = KINDS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert KINDS["Service"]["spec"]["selector"] == labels
    assert KINDS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert KINDS[kind]["spec"]["selector"]["matchLabels"] == labels
    for constraint in POD["topologySpreadConstraints"]:
        assert constraint["labelSelector"]["matchLabels"] == labels


def test_the_probes_ask_for_what_each_is_about():
    asked = {name: CONTAINER[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    [port] = CONTAINER["ports"]
    assert {CONTAINER[name]["httpGet"]["port"] for name in asked} == {port["name"]}
    assert f"EXPOSE {port['containerPort']}" in (DEPLOY / "Dockerfile").read_text()


def test_a_pod_has_time_for_its_pre_stop_and_to_drain():
    program_name, wait = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert program_name == "sleep"
    assert POD["terminationGracePeriodSeconds"] >= int(wait) + DRAIN


def test_one_replica_is_always_there():
    spec = KINDS["Deployment"]["spec"]
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert KINDS["PodDisruptionBudget"]["spec"]["maxUnavailable"] < spec["replicas"]


def test_a_pod_passes_the_restricted_standard():
    """See https://kubernetes.io/docs/concepts/security/pod-security-standards/."""
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert POD["automountServiceAccountToken"] is False
    context = CONTAINER["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(POD)
    assert all(set(volume) - {"name"} <= {"secret", "emptyDir"} for volume in POD["volumes"])


def test_what_a_container_mounts_and_reads_is_there():
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in POD["volumes"]}
    assert mounts["tmp"] == "/tmp"
    for variable in CONTAINER["env"]:
        assert variable["name"] in {"STOPPABLE_API_KEY_FILE", "STOPPABLE_STORE_FILE"}
        assert variable["value"].startswith(f"{mounts['secrets']}/")
    assert not CONTAINER["image"].endswith(":latest")


def test_the_network_policy_is_for_both_directions_and_leaves_the_metadata_of_the_machine_out():
    spec = KINDS["NetworkPolicy"]["spec"]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert all(rule["ports"] for rule in [*spec["ingress"], *spec["egress"]])
    [block] = [peer["ipBlock"] for rule in spec["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert "169.254.0.0/16" in block["except"]


# --- systemd ---------------------------------------------------------------------------------------------------------


def analyze(*arguments):
    command = [program("systemd-analyze"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_systemd_understands_the_unit(tmp_path):
    here = {"/opt/stoppable/bin/stoppable": "/bin/true", "/srv/stoppable": str(tmp_path)}
    unit = tmp_path / "stoppable.service"
    unit.write_text(changed(DEPLOY / "stoppable.service", here))
    done = analyze("verify", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_finds_little_that_the_unit_exposes():
    done = analyze("security", "--offline=true", "--threshold=15", DEPLOY / "stoppable.service")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_gives_the_runs_time_and_their_commands_no_signal():
    settings = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
    assert settings["KillMode"] == "mixed"
    assert int(settings["TimeoutStopSec"]) >= DRAIN
    assert settings["DynamicUser"] == "yes"
    assert set(re.findall(r"^LoadCredential=(\S+):", UNIT, re.MULTILINE)) == {"stoppable-api-key", "stoppable-store"}

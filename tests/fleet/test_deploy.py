"""The examples of a deployment are valid, by the tools that will read them."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from sglang_lp.server.versions import NEWEST
from sglang_lp.trust import Policy
from support.servers.disaggregated import PACKAGES

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
KUBERNETES = [*yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text())]
MONITORING = yaml.safe_load((ROOT / "deploy/monitoring.yaml").read_text())
POLICY = ROOT / "deploy/policy.toml"
UNIT = ROOT / "deploy/sglang@.service"
#: SGLang answers ``/health`` after 1 to 20 seconds.
SLOWEST = 20


def runs(*command):
    """Run a tool of the folder that ``make test SUITE=fleet`` fills; return what it said."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def containers():
    """Return the target (server or router) and arguments of each container."""
    services = COMPOSE["services"].values()
    found = [(service["build"]["target"], service["command"]) for service in services]
    for one in KUBERNETES:
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            target = "router" if "router" in container["image"] else "server"
            found.append((target, container["args"]))
    return found


def test_every_worker_takes_its_arguments():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    asked = [arguments for target, arguments in containers() if target == "server"]
    assert len(asked) == 3
    for arguments in asked:
        assert parser.parse_args(arguments).model_path


def unit():
    """Return the section [Service] of the unit: the values of each setting."""
    settings = {}
    _, _, section = UNIT.read_text().partition("[Service]\n")
    for line in section.partition("\n[")[0].splitlines():
        if line[:1] != "#" and "=" in line:
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


def test_the_unit_of_systemd_starts_a_server_that_drains_and_does_not_start_again_in_vain():
    from sglang.srt.server_args import ServerArgs

    settings = unit()
    (command,) = settings["ExecStart"]
    before, _, arguments = command.partition(" -- ")
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    assert before.endswith("/sglang-lp serve")
    assert parser.parse_args(arguments.replace("%i", "30000").split()).port == 30000
    assert f"ENV {settings['Environment'][-1]}\n" in DOCKERFILE
    # The exit codes of sglang-lp serve and of the plugin where a second start fails as well.
    assert settings["RestartPreventExitStatus"] == ["2 78"]
    assert settings["KillMode"] == ["mixed"]
    worker = of_kind("Deployment")["sglang-lp-worker"]["spec"]["template"]["spec"]
    assert settings["TimeoutStopSec"] == [str(worker["terminationGracePeriodSeconds"])]
    pages = (ROOT / "docs/deploying.md").read_text()
    assert f"systemctl restart {UNIT.stem}{{port}}" in pages


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    # It looks for the program, and for an instance of the template.
    made = UNIT.read_text().replace("/opt/sglang-lp/bin/sglang-lp", sys.executable)
    (tmp_path / "sglang@30000.service").write_text(made)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "sglang@30000.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_workers_keep_their_models_in_one_volume():
    (claim,) = of_kind("PersistentVolumeClaim")
    pod = of_kind("Deployment")["sglang-lp-worker"]["spec"]["template"]["spec"]
    (volume,) = (one for one in pod["volumes"] if "persistentVolumeClaim" in one)
    assert volume["persistentVolumeClaim"] == {"claimName": claim}
    (container,) = pod["containers"]
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert f"ENV HF_HOME={mounted[volume['name']]}\n" in DOCKERFILE
    assert pod["securityContext"]["fsGroup"] == container["securityContext"]["runAsUser"]


def test_the_policy_is_one_and_the_same_everywhere():
    assert Policy.from_toml(str(POLICY)).ceilings
    (mapped,) = (one for one in KUBERNETES if one["kind"] == "ConfigMap")
    assert tomllib.loads(mapped["data"]["policy.toml"]) == tomllib.loads(POLICY.read_text())
    for service in COMPOSE["services"].values():
        if service["build"]["target"] == "server":
            assert "./deploy/policy.toml:/etc/sglang-lp/policy.toml:ro" in service["volumes"]


def test_the_image_has_an_sglang_that_is_supported():
    assert f"ARG SGLANG=v{NEWEST}\n" in DOCKERFILE
    assert "sglang-lp doctor" in DOCKERFILE


def test_everything_that_the_image_copies_is_sent_to_its_build():
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copied = {
        name
        for line in DOCKERFILE.splitlines()
        if line.startswith("COPY")
        for name in line.split()[1:-1]
    }
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


def of_kind(kind):
    """Return the Kubernetes objects of one kind by name."""
    return {one["metadata"]["name"]: one for one in KUBERNETES if one["kind"] == kind}


def stages():
    """Return the instructions of each stage of the Dockerfile, as pairs of a word and the rest."""
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    found = {}
    for word, _, rest in (line.partition(" ") for line in lines if line and line[0] != "#"):
        if word == "FROM":
            found[rest.split()[-1]] = []
        elif found:
            [*found.values()][-1].append((word, rest.strip()))
    return found


def test_no_container_runs_as_root_and_each_says_whether_it_is_healthy():
    assert {*stages()} == {"router", "server"}
    for name, instructions in stages().items():
        words = [word for word, _ in instructions]
        assert words.count("HEALTHCHECK") == words.count("USER") == 1
        installs = max(at for at, word in enumerate(words) if word == "RUN")
        assert words.index("USER") > installs
        (check,) = [rest for word, rest in instructions if word == "HEALTHCHECK"]
        if name == "server":
            assert int(check.partition("--timeout=")[2].partition("s")[0]) > SLOWEST
        json.loads(check.partition("CMD ")[2])


def test_every_pod_has_probes_and_no_rights_that_it_does_not_need():
    assert len(of_kind("Deployment")) == 2
    for name, one in of_kind("Deployment").items():
        (container,) = one["spec"]["template"]["spec"]["containers"]
        ports = {port["name"] for port in container["ports"]}
        probes = {key: value for key, value in container.items() if key.endswith("Probe")}
        assert probes.keys() >= {"readinessProbe", "livenessProbe"}
        for probe in probes.values():
            assert probe["httpGet"]["port"] in ports
            if name == "sglang-lp-worker":
                assert probe["timeoutSeconds"] > SLOWEST
        rights = container["securityContext"]
        assert rights["runAsNonRoot"]
        assert not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
    worker = of_kind("Deployment")["sglang-lp-worker"]["spec"]["template"]["spec"]
    user = worker["containers"][0]["securityContext"]["runAsUser"]
    assert f"--uid {user} " in DOCKERFILE


def test_the_disruption_budget_keeps_a_worker():
    (budget,) = of_kind("PodDisruptionBudget").values()
    worker = of_kind("Deployment")["sglang-lp-worker"]["spec"]
    assert budget["spec"]["selector"] == worker["selector"]
    assert budget["spec"]["maxUnavailable"] < worker["replicas"]


def test_prometheus_finds_the_workers_metrics():
    (service,) = [
        one
        for one in of_kind("Service").values()
        if one["metadata"].get("labels") == MONITORING["spec"]["selector"]["matchLabels"]
    ]
    worker = of_kind("Deployment")["sglang-lp-worker"]["spec"]["template"]
    assert service["spec"]["selector"] == worker["metadata"]["labels"]
    (endpoint,) = MONITORING["spec"]["endpoints"]
    (port,) = service["spec"]["ports"]
    (container,) = worker["spec"]["containers"]
    assert endpoint["port"] == port["name"]
    assert port["targetPort"] in {one["name"] for one in container["ports"]}
    assert "--enable-metrics" in container["args"]


@pytest.mark.fleet
def test_hadolint_finds_nothing_in_the_dockerfile():
    assert runs(PACKAGES / "bin" / "hadolint", "Dockerfile") == ""


@pytest.mark.fleet
def test_the_compose_file_is_one_by_its_specification():
    # Its reader knows no merge keys.
    read = "import sys, compose_spec; compose_spec.PyCompose.from_json(sys.argv[1])"
    runs(sys.executable, "-c", read, json.dumps(COMPOSE))


@pytest.mark.fleet
def test_the_kubernetes_objects_fit_its_schemas():
    said = runs(sys.executable, "-m", "kubernetes_validate", "--strict", "deploy/kubernetes.yaml")
    assert said.count("passed") == len(KUBERNETES)

"""The Kubernetes manifests: what their schemas say, and whether they fit each other and us."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.files.compose import ROOT, read_compose
from tests.deploy.files.docker_image import stages
from tests.deploy.files.kustomize import KUBERNETES, built
from tests.deploy.files.page import shown, time_limit
from tests.services.forked import run

OVERLAYS = ["cpu", "gpu"]
#: Paths of the web server for probes and for Prometheus.
INTERNAL = {"/healthz", "/metrics", "/readyz"}
#: The oldest and the newest release that the manifests are meant for, with those between.
RELEASES = ["1.28", "1.32", "1.37"]
#: As Kubernetes writes what a secret holds into arguments.
PASSWORDS = {"REDIS_PASSWORD": "$(REDISCLI_AUTH)", "FLOWER_PASSWORD": "any"}
SERVICES = read_compose("production", environ=PASSWORDS)["services"]


def objects(overlay: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what an overlay makes, by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in built(KUBERNETES / overlay)}


def pods(overlay: str) -> dict[str, dict[str, Any]]:
    """Return the pods that an overlay starts, by their owners' names."""
    return {
        name: each["spec"]["template"]
        for (kind, name), each in objects(overlay).items()
        if kind in {"Deployment", "StatefulSet"}
    }


def container(overlay: str, name: str) -> dict[str, Any]:
    """Return the one container of a pod."""
    (found,) = pods(overlay)[name]["spec"]["containers"]
    return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_objects_are_what_kubernetes_asks_for(overlay, release):
    """Each object is valid by Kubernetes' own schema, without unknown fields."""
    found = objects(overlay)
    assert {"Deployment", "Service"} <= {kind for kind, _ in found}
    for each in found.values():
        kubernetes_validate.validate(each, release, strict=True)


@pytest.mark.parametrize("release", RELEASES)
def test_documented_deployment_is_what_kubernetes_asks_for(release):
    """The page's Deployment is valid, finds its pods, and probes as the page's image does."""
    said = yaml.safe_load(shown("kubernetes", "yaml"))
    kubernetes_validate.validate(said, release, strict=True)
    template = said["spec"]["template"]
    (worker,) = template["spec"]["containers"]
    image = shown("docker", "dockerfile")
    health = json.loads(re.findall(r"^HEALTHCHECK.* CMD (.+)", image, re.MULTILINE)[0])

    assert said["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert time_limit() + 5 < template["spec"]["terminationGracePeriodSeconds"]
    assert health == worker["readinessProbe"]["exec"]["command"]
    assert [*health, "--live"] == worker["livenessProbe"]["exec"]["command"]


@pytest.mark.parametrize("overlay", [*OVERLAYS, "keda"])
def test_kustomize_makes_the_same(overlay):
    """What these tests look at is what `kubectl` makes of the files."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed, and no package of Debian has it")
    done = subprocess.run(
        [kubectl, "kustomize", KUBERNETES / overlay], check=True, capture_output=True, text=True
    )

    theirs = {
        (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)
    }
    assert theirs == objects(overlay)


def test_scaler_is_what_keda_asks_for():
    """KEDA's objects have what its documents ask for, and nothing they do not know."""
    schema = json.loads((Path(__file__).parent / "keda.schema.json").read_text())
    found = objects("keda")
    for each in found.values():
        jsonschema.Draft202012Validator(schema).validate(each)
    scaled = found["ScaledObject", "worker"]["spec"]
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    hpa = objects("cpu")["HorizontalPodAutoscaler", "web"]
    hpa = {**hpa, "spec": {**hpa["spec"], "behavior": behavior}}
    kubernetes_validate.validate(hpa, "1.37", strict=True)

    assert ("Deployment", scaled["scaleTargetRef"]["name"]) in objects("cpu")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_apply_leaves_what_scalers_decide(overlay):
    """No overlay says how many there are of what an autoscaler scales: an apply would reset it."""
    every = {**objects(overlay), **objects("keda")}
    targets = [
        (target.get("kind", "Deployment"), target["name"])
        for (kind, _), each in every.items()
        if kind in {"HorizontalPodAutoscaler", "ScaledObject"}
        for target in [each["spec"]["scaleTargetRef"]]
    ]

    assert {("Deployment", "web"), ("Deployment", "worker")} == set(targets)
    assert [] == [target for target in targets if "replicas" in every[target]["spec"]]


def test_scaler_knows_the_queue_and_its_password():
    """It looks at the example's queue, by the Redis' name, with the secret's password."""
    found = objects("keda")
    _, by_length = found["ScaledObject", "worker"]["spec"]["triggers"]
    authentication = found["TriggerAuthentication", by_length["authenticationRef"]["name"]]
    (reference,) = authentication["spec"]["secretTargetRef"]
    redis = objects("cpu")["Service", "redis"]
    host = f"{redis['metadata']['name']}.{redis['metadata']['namespace']}.svc"

    assert f"{host}:{redis['spec']['ports'][0]['port']}" == by_length["metadata"]["address"]
    assert "celery" == by_length["metadata"]["listName"]
    assert ("celery-batch", "redis_password") == (reference["name"], reference["key"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_names_lead_somewhere(overlay):
    """Whatever selects pods finds those that it means, and each port is one that they have."""
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(overlay).items()}
    found = objects(overlay)
    for (kind, name), each in found.items():
        spec = each.get("spec", {})
        if kind in {"Deployment", "StatefulSet", "PodDisruptionBudget"}:
            assert spec["selector"]["matchLabels"].items() <= labels[name].items()
        if kind == "Service":
            ports = {port["name"] for port in container(overlay, name)["ports"]}

            assert spec["selector"].items() <= labels[name].items()
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        if kind == "Ingress":
            backends = [path["backend"]["service"] for path in spec["rules"][0]["http"]["paths"]]
            ports = [port["name"] for port in found["Service", "web"]["spec"]["ports"]]

            assert {("web", *ports)} == {(each["name"], each["port"]["name"]) for each in backends}
    assert "redis" == found["StatefulSet", "redis"]["spec"]["serviceName"]


def test_network_lets_pass_what_is_needed():
    """Workers and web reach Redis and nothing else; what is opened is what listens."""
    found = objects("cpu")
    policies = {
        name: each["spec"] for (kind, name), each in found.items() if kind == "NetworkPolicy"
    }
    opened = {
        (name, port["port"])
        for name, spec in policies.items()
        for rule in spec.get("ingress", ())
        for port in rule["ports"]
    }
    listens = {
        (name, port["containerPort"])
        for name in pods("cpu")
        for port in container("cpu", name)["ports"]
    }

    assert {} == policies["default-deny"]["podSelector"]
    assert ["Ingress", "Egress"] == policies["default-deny"]["policyTypes"]
    assert opened == listens
    assert [6379] == [port["port"] for port in policies["egress-to-redis"]["egress"][0]["ports"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", ["worker", "web", "redis"])
def test_pod_may_do_little(overlay, name):
    """Each pod passes the strictest of Kubernetes' own standards, and writes to no image."""
    pod = pods(overlay)[name]["spec"]
    security = container(overlay, name)["securityContext"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert "RuntimeDefault" == pod["securityContext"]["seccompProfile"]["type"]
    assert pod["automountServiceAccountToken"] is False
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert ["ALL"] == security["capabilities"]["drop"]
    assert "memory" in container(overlay, name)["resources"]["limits"]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", ["worker", "web", "redis"])
def test_pods_have_the_secrets_that_they_name(overlay, name):
    """Each secret's key is one that the template has; what arguments and URLs refer to is set."""
    template = yaml.safe_load((KUBERNETES / "secret.template.yaml").read_text())
    said = container(overlay, name)
    secrets = {
        each["name"]: each["valueFrom"]["secretKeyRef"]
        for each in said["env"]
        if "valueFrom" in each
    }
    values = [*said["args"], *(each["value"] for each in said["env"] if "value" in each)]
    used = {found for value in values for found in re.findall(r"\$\((\w+)\)", value)}

    assert used == set(secrets)
    assert {template["metadata"]["name"]} == {each["name"] for each in secrets.values()}
    assert {each["key"] for each in secrets.values()} <= set(template["stringData"])


def test_ingress_passes_what_is_for_clients():
    """Each path of the app's document is passed on; what the cluster itself asks is not."""
    rules = objects("cpu")["Ingress", "web"]["spec"]["rules"][0]["http"]["paths"]
    exact = {each["path"] for each in rules if each["pathType"] == "Exact"}
    prefixes = {each["path"] for each in rules if each["pathType"] == "Prefix"}
    code = "import json; from webapp.fastapi_app import app; print(json.dumps(app.openapi()))"
    done = run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    served = json.loads(done.stdout)["paths"]
    kept = {path for path in served if not (path in exact or f"/{path.split('/')[1]}" in prefixes)}

    assert {"/predict", "/tasks/{task_id}"} <= set(served)
    assert kept <= INTERNAL
    assert not INTERNAL & (exact | prefixes)


def test_containers_run_what_compose_runs():
    """The commands and probes are those of the compose file, which are tried as processes."""
    worker, web, redis = (container("cpu", name) for name in ("worker", "web", "redis"))
    health = run_by("worker", "HEALTHCHECK")
    probe = redis["readinessProbe"]["exec"]["command"]

    assert shlex.split(SERVICES["worker"]["command"]) == worker["args"]
    assert run_by("web", "CMD") == web["args"]
    assert health == worker["readinessProbe"]["exec"]["command"]
    assert [*health, "--live"] == worker["livenessProbe"]["exec"]["command"]
    assert shlex.split(SERVICES["redis"]["command"]) == redis["args"]
    assert SERVICES["redis"]["healthcheck"]["test"] == ["CMD", *probe]
    assert SERVICES["redis"]["image"] == redis["image"]
    assert all(f"celery-batch-{each}" in str(image) for each, image in images().items())


def run_by(stage: str, word: str) -> list[str]:
    """Return the words of a command that the Dockerfile gives to an image."""
    (step,) = [step for step in stages()[stage][1] if step.word == word]
    return step.command


def images() -> dict[str, str]:
    """Return the image of each stage of the Dockerfile that the overlays name."""
    found = {}
    for overlay, target in (("cpu", "worker"), ("gpu", "worker-gpu"), ("cpu", "web")):
        assert target in stages()
        found[target] = container(overlay, target.partition("-")[0])["image"]
    return found


def test_worker_has_time_to_end():
    """The longest batch ends before Kubernetes kills, and a GPU is free before it is asked for."""
    (limit,) = [
        word for word in container("cpu", "worker")["args"] if word.startswith("--time-limit=")
    ]
    grace = pods("cpu")["worker"]["spec"]["terminationGracePeriodSeconds"]
    gpu = objects("gpu")["Deployment", "worker"]["spec"]

    assert int(limit.partition("=")[2]) + 5 < grace
    assert 0 == gpu["strategy"]["rollingUpdate"]["maxSurge"]
    assert 1 == container("gpu", "worker")["resources"]["limits"]["nvidia.com/gpu"]
    assert "nvidia.com/gpu" not in container("cpu", "worker")["resources"]["limits"]

"""The compose file fits its schema, the Dockerfile, the configurations and the house."""

from __future__ import annotations

import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from celery_batch.serve.config import read_config
from tests.conftest import ROOT
from tests.services.compose import COMPOSE_FILE, read_compose
from tests.services.image import stages

COMPOSE = read_compose({})
SERVICES = COMPOSE["services"]

#: Lives on its data alone, which it writes beside its configuration.
WRITES_TO_ITS_IMAGE = {"rabbitmq"}


def seconds(text: str) -> int:
    """Return how long that is."""
    return int(text.removesuffix("s"))


def test_file_is_what_the_specification_asks_for():
    """The file is valid by the compose specification's own schema."""
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [tool, "--builtin-schema", "vendor.compose-spec", COMPOSE_FILE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_service_can_be_had(name):
    """Each service is built from a stage of ours, or is an image of a release that is named."""
    service = SERVICES[name]

    if "build" in service:
        assert service["build"]["target"] in stages()
    else:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+(-alpine)?", service["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_looked_after(name):
    """Each has a health check, comes back, has limits, and rotates its log."""
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]

    assert {"test", "interval", "timeout", "retries", "start_period"} <= set(service["healthcheck"])
    assert "unless-stopped" == service["restart"]
    assert {"cpus", "memory", "pids"} == set(limits)
    assert {"max-size", "max-file"} == set(service["logging"]["options"])
    assert service["init"] is True
    assert seconds(service["stop_grace_period"]) >= 20


@pytest.mark.parametrize("name", SERVICES)
def test_service_may_do_little(name):
    """No service is root, has capabilities or can gain any, and its image is read-only."""
    service = SERVICES[name]
    steps = [step for _, some in stages().values() for step in some]

    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert (name not in WRITES_TO_ITS_IMAGE) is service["read_only"]
    if "build" in service:
        assert [["10001"]] == [step.words for step in steps if step.word == "USER"]
    else:
        assert service["user"] not in {"root", "0"}


def test_only_nginx_and_a_handle_are_published():
    """The ways in are nginx's and, with its profile, a handle's, and they are on loopback."""
    published = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}

    assert {"nginx", "serve"} == set(published)
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert {"edge"} == {
        name for name, net in COMPOSE["networks"].items() if not net.get("internal")
    }
    assert "broker" not in SERVICES["nginx"]["networks"]


def test_worker_ends_within_its_grace():
    """The longest batch ends, with the 5 seconds that its items have alone, before it is killed."""
    for name in ("worker", "gpu0", "gpu1"):
        (limit,) = re.findall(r"--time-limit=(\d+)", SERVICES[name]["command"])

        assert int(limit) + 5 < seconds(SERVICES[name]["stop_grace_period"])


def test_gpus_are_reserved_one_for_each_worker():
    """Each GPU worker has a device of its own and one pool process; without a profile none runs."""
    workers = {name: each for name, each in SERVICES.items() if name.startswith("gpu")}
    devices = [
        each["deploy"]["resources"]["reservations"]["devices"][0] for each in workers.values()
    ]

    assert [["0"], ["1"]] == [each["device_ids"] for each in devices]
    assert all(["gpu"] == each["capabilities"] for each in devices)
    assert all("--concurrency=1 " in each["command"] for each in workers.values())
    assert all("gpus" in each["profiles"] for each in workers.values())
    assert "gpu" in SERVICES["gpu0"]["profiles"]
    assert "0" == read_compose({"CPU_WORKERS": "0"})["services"]["worker"]["deploy"]["replicas"]


def test_rabbitmq_takes_the_place_of_redis():
    """With its variable the tasks go through RabbitMQ, and the results stay in Redis."""
    for name in ("worker", "web", "flask", "flower"):
        service = read_compose({"BROKER": "rabbitmq"})["services"][name]

        assert "/run/secrets/rabbitmq_url" == service["environment"]["CELERY_BROKER_URL_FILE"]
        assert "/run/secrets/redis_url" == service["environment"]["CELERY_RESULT_BACKEND_FILE"]
        assert "rabbitmq_url" in service["secrets"]
        assert service["depends_on"]["rabbitmq"]["required"] is False


def test_no_secret_is_in_the_file(tmp_path):
    """Every password is in a file that a script makes, with a folder around it that is private."""
    script = ["/bin/sh", ROOT / "deploy" / "docker" / "secrets.sh", tmp_path / "secrets"]
    subprocess.run(script, check=True, capture_output=True)
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    subprocess.run(script, check=True, capture_output=True)

    assert {Path(each["file"]).name for each in COMPOSE["secrets"].values()} <= set(made)
    assert made == {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert 0o700 == stat.S_IMODE((tmp_path / "secrets").stat().st_mode)
    assert made["redis_url"] == f"redis://:{made['redis_password']}@redis:6379/0"
    assert "secrets/" in (ROOT / ".gitignore").read_text().split()
    assert not re.search(r"(?i)(password|_secret)\w*: *[^\s/{$]", COMPOSE_FILE.read_text())


def test_every_secret_that_is_used_is_known():
    """What a service asks for is among the secrets, and each variable names one that it has."""
    for name, service in SERVICES.items():
        has = {
            each if isinstance(each, str) else each["source"] for each in service.get("secrets", ())
        }
        named = {
            Path(value).name
            for value in service.get("environment", {}).values()
            if str(value).startswith("/run/secrets/")
        }

        assert has <= set(COMPOSE["secrets"]), name
        assert named <= has, name


def test_served_handle_can_be_reached():
    """The server listens where the container's port is published."""
    words = shlex.split(SERVICES["serve"]["command"])
    config = read_config(ROOT / words[-1])
    _, outside, inside = SERVICES["serve"]["ports"][0].split(":")

    assert ["celery", "batch", "serve", "-c"] == words[:-1]
    assert ("0.0.0.0", int(inside)) == (config.host, config.port)  # noqa: S104 (in its container)
    assert outside == inside


def test_served_configuration_is_the_examples():
    """In the container it is the example's configuration, but for where things are."""
    config = read_config(ROOT / "deploy" / "docker" / "imagenet_resnet18.yaml")
    example = read_config(ROOT / "examples" / "serving" / "configs" / "imagenet_resnet18.yaml")

    assert (example.handle, example.slots) == (config.handle, config.slots)
    assert example.max_batch_size == config.max_batch_size


def test_served_file_is_mounted():
    """The file that the handle is told of lies in a folder of the host's."""
    (volume,) = SERVICES["serve"]["volumes"]

    assert SERVICES["serve"]["environment"]["RESNET18_ONNX"].startswith(volume.split(":")[1] + "/")


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there(name):
    """Where a file is missing, Docker would make a folder of its name."""
    for volume in SERVICES[name].get("volumes", ()):
        source = volume.split(":")[0]

        assert not source.startswith("./deploy") or (ROOT / source).exists()

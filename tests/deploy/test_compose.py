"""The compose file and the Dockerfile fit each other, the configurations and the tree."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from celery_batch.serve.config import read_config
from tests.conftest import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def served():
    """Return the configuration that the compose file serves."""
    words = shlex.split(SERVICES["serve"]["command"])

    assert ["celery", "batch", "serve", "-c"] == words[:-1]
    return read_config(ROOT / words[-1])


def test_served_handle_can_be_reached():
    """The server listens where the container's port is published, and knows the Redis beside it."""
    config = served()
    _, outside, inside = SERVICES["serve"]["ports"][0].split(":")
    host = config.broker.removeprefix("redis://").partition(":")[0]

    assert ("0.0.0.0", int(inside)) == (config.host, config.port)  # noqa: S104 (in its container)
    assert outside == inside
    assert host in SERVICES["serve"]["depends_on"]


def test_served_configuration_is_the_examples():
    """In the container it is the example's configuration, but for where things are."""
    config = served()
    example = read_config(ROOT / "examples" / "serving" / "configs" / "imagenet_resnet18.yaml")

    assert (example.handle, example.slots) == (config.handle, config.slots)
    assert example.max_batch_size == config.max_batch_size


def test_served_file_is_mounted():
    """The file that the handle is told of lies in a folder of the host's."""
    (volume,) = SERVICES["serve"]["volumes"]

    assert SERVICES["serve"]["environment"]["RESNET18_ONNX"].startswith(volume.split(":")[1] + "/")


@pytest.mark.parametrize("name", SERVICES)
def test_services_can_be_built(name):
    """Each service has an image, or a stage of ours; those it waits for can be asked."""
    service = SERVICES[name]
    stage = service["build"]["target"] if isinstance(service.get("build"), dict) else None

    assert ("image" in service) != ("build" in service)
    assert stage is None or f" AS {stage}\n" in DOCKERFILE
    assert all("healthcheck" in SERVICES[other] for other in service.get("depends_on", ()))


def test_image_gets_what_it_copies():
    """What the Dockerfile copies is in the tree, and not kept from Docker."""
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = [
        source
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]

    assert [] == [source for source in copied if not (ROOT / source).exists()]
    assert [] == [source for source in copied if source.partition("/")[0] not in allowed]

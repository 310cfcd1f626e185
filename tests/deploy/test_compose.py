"""The compose files fit their schema, the Dockerfile and the configurations that they mount."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from celery_batch.serve.config import read_config
from tests.deploy.files.compose import OVERRIDES, ROOT, read_compose
from tests.deploy.files.docker_image import stages
from tests.deploy.files.page import shown, time_limit

PASSWORDS = {"REDIS_PASSWORD": "sesame", "FLOWER_PASSWORD": "garlic"}

#: Every service, with all overrides at once.
COMPOSE = read_compose(*OVERRIDES, environ=PASSWORDS)
SERVICES = COMPOSE["services"]

#: It writes a cookie and a list of plugins beside its data.
WRITES_TO_ITS_IMAGE = {"rabbitmq"}


def seconds(text: str) -> int:
    """Return how long that is."""
    return int(text.removesuffix("s"))


def test_files_are_what_the_specification_asks_for(tmp_path):
    """The file is valid by the compose specification's schema: alone, and with its overrides."""
    for overrides in ([], *([name] for name in OVERRIDES), [*OVERRIDES]):
        merged = tmp_path / f"{'-'.join(overrides) or 'alone'}.json"
        merged.write_text(json.dumps(read_compose(*overrides, environ=PASSWORDS)))

    check_schema(tmp_path)


def check_schema(folder: Path) -> None:
    """Fail if a compose file in a folder, as JSON, is not valid by the schema."""
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [tool, "--builtin-schema", "vendor.compose-spec", *folder.iterdir()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_documented_file_is_what_the_specification_asks_for(tmp_path):
    """The page's file is valid by the schema, too, and its worker ends before it is killed."""
    said = yaml.safe_load(shown("docker", "yaml"))
    (tmp_path / "compose.json").write_text(json.dumps(said))
    check_schema(tmp_path)

    assert time_limit() + 5 < seconds(said["services"]["worker"]["stop_grace_period"])


def test_file_alone_is_enough_for_a_beginner():
    """Without overrides and variables there are four services, which this machine alone reaches."""
    services = read_compose()["services"]
    published = [port for each in services.values() for port in each.get("ports", ())]

    assert {"redis", "worker", "web", "flower"} == set(services)
    assert ["127.0.0.1:8000:8000", "127.0.0.1:5555:5555"] == published


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
    """Each has a health check, comes back, has a limit of memory and time to end."""
    service = SERVICES[name]
    steps = stages()[service["build"]["target"]][1] if "build" in service else []

    assert "healthcheck" in service or "HEALTHCHECK" in {step.word for step in steps}
    assert "unless-stopped" == service["restart"]
    assert service["mem_limit"]
    assert "local" == service["logging"]["driver"]
    assert seconds(service.get("stop_grace_period", "10s")) >= 10


@pytest.mark.parametrize("name", SERVICES)
def test_service_may_do_little(name):
    """No service is root, has capabilities or can gain any, and its image is read-only."""
    service = SERVICES[name]
    steps = [step for _, some in stages().values() for step in some]

    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert (name not in WRITES_TO_ITS_IMAGE) is service.get("read_only", False)
    if "build" in service:
        assert [["10001"]] == [step.words for step in steps if step.word == "USER"]
    else:
        assert service["user"] not in {"root", "0"}


def test_every_port_is_on_loopback():
    """No file opens a port to other machines by itself, and a broker is not published at all."""
    published = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}

    assert {"nginx", "flower", "grafana", "serve"} == set(published)
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_nginx_takes_the_place_of_the_web_servers_port():
    """With nginx the web server's port is its own, so that there can be several; one opens it."""
    services = read_compose("nginx", environ={"LISTEN": "0.0.0.0"})["services"]  # noqa: S104

    assert "ports" not in services["web"]
    assert ["0.0.0.0:8000:8000"] == services["nginx"]["ports"]


@pytest.mark.parametrize("overrides", [[], ["gpu"]])
def test_worker_ends_within_its_grace(overrides):
    """The longest batch ends, with the 5 seconds that its items have alone, before it is killed."""
    worker = read_compose(*overrides)["services"]["worker"]
    (limit,) = re.findall(r"--time-limit=(\d+)", worker["command"])

    assert int(limit) + 5 < seconds(worker["stop_grace_period"])


def test_gpu_worker_has_a_process_for_each_gpu():
    """It reserves as many GPUs as are asked for, and runs one pool process on each."""
    worker = read_compose("gpu", environ={"GPUS": "2"})["services"]["worker"]
    (devices,) = worker["deploy"]["resources"]["reservations"]["devices"]

    assert ("2", ["gpu"]) == (devices["count"], devices["capabilities"])
    assert "--concurrency=2 " in worker["command"]
    assert {"context": ".", "target": "worker-gpu"} == worker["build"]


def test_rabbitmq_takes_the_place_of_redis():
    """The tasks of all services go through RabbitMQ, and the results stay in Redis."""
    services = read_compose("rabbitmq", environ={"RABBITMQ_PASSWORD": "secret"})["services"]
    for name in ("worker", "web", "flower"):
        environment = services[name]["environment"]

        assert "amqp://celery:secret@rabbitmq:5672//" == environment["CELERY_BROKER_URL"]
        assert environment["CELERY_RESULT_BACKEND"].startswith("redis://")
        assert {"redis", "rabbitmq"} == set(services[name]["depends_on"])
    assert "secret" == services["rabbitmq"]["environment"]["RABBITMQ_DEFAULT_PASS"]


@pytest.mark.parametrize("missing", PASSWORDS)
def test_production_demands_its_passwords(missing):
    """With the production file nothing starts without a password for Redis and for Flower."""
    given = {name: value for name, value in PASSWORDS.items() if name != missing}
    with pytest.raises(KeyError, match=f"{missing} is not set"):
        read_compose("production", environ=given)


def test_passwords_reach_those_that_need_them():
    """Redis requires its password, and its clients have it; no file has one itself."""
    services = read_compose("production", environ=PASSWORDS)["services"]
    words = shlex.split(services["redis"]["command"])

    assert "sesame" == words[words.index("--requirepass") + 1]
    assert "sesame" == services["redis"]["environment"]["REDISCLI_AUTH"]
    assert "admin:garlic" == services["flower"]["environment"]["FLOWER_BASIC_AUTH"]
    for name in ("worker", "web", "flower"):
        url = services[name]["environment"]["CELERY_BROKER_URL"]
        assert "redis://:sesame@redis:6379/0" == url
    assert ".env" in (ROOT / ".gitignore").read_text().split()


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
    config = read_config(ROOT / "deploy" / "compose" / "imagenet_resnet18.yaml")
    example = read_config(ROOT / "examples" / "serving" / "configs" / "imagenet_resnet18.yaml")

    assert (example.handle, example.slots) == (config.handle, config.slots)
    assert example.max_batch_size == config.max_batch_size


def test_served_file_is_mounted():
    """The file that the handle gets lies in a folder of the host."""
    (volume,) = SERVICES["serve"]["volumes"]

    assert SERVICES["serve"]["environment"]["RESNET18_ONNX"].startswith(volume.split(":")[1] + "/")


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there(name):
    """Where a file is missing, Docker would make a folder of its name."""
    for volume in SERVICES[name].get("volumes", ()):
        source = volume.split(":")[0]

        assert not source.startswith("./deploy") or (ROOT / source).exists()

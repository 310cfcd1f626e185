"""The compose file's services by their own commands, with their own health checks."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import find_redis_server
from tests.conftest import ROOT, need
from tests.deploy.files.compose import read_compose
from tests.deploy.files.docker_image import Step, stages
from tests.deploy.files.kustomize import KUBERNETES, built
from tests.services.servers.nginx import find_nginx
from tests.services.servers.ports import quiet_port
from tests.services.servers.prometheus_server import Prometheus, find_prometheus

#: Many servers start, one of which loads a model, on a machine that does more besides.
pytestmark = pytest.mark.timeout(400)

PASSWORDS = {"REDIS_PASSWORD": "an-open-sesame", "FLOWER_PASSWORD": "garlic"}
SERVICES = read_compose("nginx", "monitoring", "production", environ=PASSWORDS)["services"]

#: The ports in the containers' network.
PORTS = {"redis": 6379, "worker": 9808, "web": 8000, "flower": 5555, "nginx": 8000}


class Services:
    """
    Services as processes of this machine, with the packages of these tests.

    A container's names and ports become free ports on loopback, its folders one folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: quiet_port() for name in PORTS}
        self.running: dict[str, ManagedProcess] = {}

    def start(self, name: str) -> None:
        """Start a service, again if it ran before; return when its health check finds it well."""
        if name in self.running:
            self.running[name].stop()
        if name == "nginx":
            conf = self.here(name, (ROOT / "deploy" / "nginx" / "compose.conf").read_text())
            user = "user root;\n" if os.geteuid() == 0 else ""  # the folder is root's
            (self.folder / "nginx.conf").write_text(user + conf)
            command = [find_nginx(), "-p", str(self.folder), "-c", "nginx.conf"]
        elif "command" in SERVICES[name]:
            command = shlex.split(self.here(name, SERVICES[name]["command"]))
        else:
            command = [self.here(name, word) for word in self._step(name, "CMD").command]
        log = self.folder / f"{name}.log"
        process = ManagedProcess(command, log, env=self.environment(name))
        self.running[name] = process
        wait_until(lambda: self.why_not_healthy(name), [process], what=name, timeout=120)

    def why_not_healthy(self, name: str) -> str:
        """Run the health check of a service."""
        if "healthcheck" in SERVICES[name]:
            words = SERVICES[name]["healthcheck"]["test"][1:]
        else:
            words = self._step(name, "HEALTHCHECK").command
        command = [self.here(name, word) for word in words]
        env = self.environment(name)
        done = subprocess.run(command, env=env, capture_output=True, check=False)
        return (done.stdout + done.stderr).decode() or "unhealthy" if done.returncode else ""

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service, and a path on which its programs are found."""
        ours = {key: str(value) for key, value in SERVICES[name].get("environment", {}).items()}
        if name == "worker":
            ours |= dict([self._step(name, "ENV").rest.split("=")])
        folders = [Path(sys.executable).parent, Path(find_redis_server()).parent]
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"], "/usr/sbin"])
        return {key: self.here(name, value) for key, value in ours.items()} | {"PATH": path}

    def here(self, name: str, text: str) -> str:
        """Return a text of a container with the addresses, ports and folders of this machine."""
        for host, port in PORTS.items():
            text = re.sub(rf"(?<![\w.-]){host}:{port}\b", f"127.0.0.1:{self.ports[host]}", text)
        text = re.sub(rf"(?<![\d.]){PORTS[name]}(?![\d.])", str(self.ports[name]), text)
        text = text.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 (which is replaced)
        return re.sub(r"(?<![\w/])/(tmp|data)\b", str(self.folder), text)

    def client(self, name: str) -> httpx.Client:
        """Return a client of a service."""
        address = f"http://127.0.0.1:{self.ports[name]}"
        return httpx.Client(base_url=address, trust_env=False, timeout=60)

    def stop(self) -> None:
        """End all of them."""
        for process in reversed(self.running.values()):
            process.stop()

    def _step(self, name: str, word: str) -> Step:
        (step,) = [step for step in stages()[name][1] if step.word == word]
        return step


@pytest.fixture(scope="module")
def services(tmp_path_factory) -> Iterator[Services]:
    """All services that a machine without Docker can have, but for Prometheus and Grafana."""
    need(find_redis_server)
    need(find_nginx)
    if missing := [name for name in ("redis-cli", "wget") if shutil.which(name) is None]:
        assert os.environ.get("CI") != "true", missing
        pytest.skip(f"not installed: {', '.join(missing)}")
    services = Services(tmp_path_factory.mktemp("compose"))
    try:
        for name in ("redis", "worker", "web", "flower", "nginx"):
            services.start(name)
        yield services
    finally:
        services.stop()


@pytest.fixture(scope="module")
def prometheus(services, tmp_path_factory) -> Iterator[Prometheus]:
    """A Prometheus with the configuration that the compose file mounts."""
    need(find_prometheus)
    ports = services.ports
    targets = {"celery_batch": "worker", "celery_batch_web": "web"}
    targets = {job: [f"127.0.0.1:{ports[name]}"] for job, name in targets.items()}
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), targets)
    yield prometheus
    prometheus.child.stop()


def test_request_goes_through_nginx_web_and_worker(services):
    """A sentence that is posted to the published port comes back with its word."""
    with services.client("nginx") as client:
        answer = client.post("/predict", json={"inputs": ["twinkle twinkle [MASK] star."]})

    assert (200, {"outputs": ["little"]}) == (answer.status_code, answer.json())
    assert "nginx" == answer.headers["server"]


def test_client_is_who_asks_nginx(services):
    """The web server's log names the address that nginx saw, whatever the client says."""
    with services.client("nginx") as client:
        client.get("/healthz?mine", headers={"X-Forwarded-For": "10.9.9.9"})
    (line,) = [
        line for line in (services.folder / "web.log").read_text().splitlines() if "?mine" in line
    ]

    assert "127.0.0.1" in line
    assert "10.9.9.9" not in line


def test_client_with_too_many_requests_is_refused(services):
    """Beyond its rate a client gets 429 from nginx, in the form of the web server's errors."""
    port = services.ports["nginx"]
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    answer = b""
    for _ in range(20):
        with ExitStack() as closing:
            clients = [
                closing.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                for _ in range(100)
            ]
            for client in clients:
                client.sendall(head)  # nginx counts it before it reads the body
            ready, _, _ = select.select(clients, [], [], 0.1)
            if ready:
                answer = ready[0].recv(10_000)
                break
    head, _, body = answer.partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"Retry-After: 1" in head
    assert "TooManyRequests" == json.loads(body)["error"]["type"]


def test_metrics_stay_inside(services):
    """The metrics are for Prometheus, and nginx does not pass them on."""
    with services.client("nginx") as client:
        assert 404 == client.get("/metrics").status_code


def test_flower_wants_its_password(services):
    """Flower shows nothing without the password of its override, and the worker with it."""
    with services.client("flower") as client:
        without = client.get("/workers").status_code

        def why_not() -> str:
            page = client.get(
                "/workers", params={"json": "1"}, auth=("admin", PASSWORDS["FLOWER_PASSWORD"])
            )
            return "" if page.json()["data"] else "no worker"

        wait_until(why_not, [], what="Flower", timeout=60)

    assert 401 == without


def test_prometheus_reaches_its_targets(prometheus):
    """Worker and web tier serve metrics where the configuration looks for them."""

    def why_not() -> str:
        targets = prometheus.ask("targets")["activeTargets"]
        states = {each["labels"]["job"]: each["health"] for each in targets}
        wanted = {"celery_batch": "up", "celery_batch_web": "up"}
        return "" if states == wanted else str(states)

    wait_until(why_not, [prometheus.child], what="Prometheus", timeout=60)


def test_scaler_has_an_answer(services, prometheus):
    """What KEDA asks Prometheus is one number; without Kubernetes there is no namespace."""
    (scaled,) = [each for each in built(KUBERNETES / "keda") if each["kind"] == "ScaledObject"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    query = re.sub(r'namespace="[^"]*",?', "", query)
    with services.client("web") as client:
        client.post("/predict", json={"inputs": ["twinkle twinkle [MASK] star."]})

    def why_not() -> str:
        values = prometheus.values(query)
        return "" if len(values) == 1 and values[0] >= 0 else str(values)

    wait_until(why_not, [prometheus.child], what="Prometheus", timeout=60)


def test_redis_wants_its_password(services):
    """A client without the password is refused; it is not in the list of processes."""
    client = redis.Redis(port=services.ports["redis"], retry=Retry(NoBackoff(), 0))
    with pytest.raises(redis.AuthenticationError):
        client.ping()
    client.close()
    (process,) = psutil.Process(services.running["redis"].pid).children()

    assert "" == services.why_not_healthy("redis")
    assert PASSWORDS["REDIS_PASSWORD"] not in " ".join(process.cmdline())


def test_unhealthy_is_noticed(services):
    """A health check says no where its service is not there."""
    services.running["nginx"].stop()
    reason = services.why_not_healthy("nginx")
    services.start("nginx")

    assert reason


def test_worker_ends_within_its_grace(services):
    """SIGTERM ends the worker before Docker would kill it; its health check notices it."""
    grace = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    (worker,) = psutil.Process(services.running["worker"].pid).children()
    worker.terminate()
    has_ended = services.running["worker"].wait(grace)
    reason = services.why_not_healthy("worker")
    services.start("worker")

    assert has_ended
    assert "has ended" in reason

"""The compose file's services, run by their own commands and asked by their own health checks."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import find_redis_server
from tests.conftest import need
from tests.services.containers import Containers, programs_missing
from tests.services.kustomize import KUBERNETES, built
from tests.services.nginx import find_nginx

#: Many servers start, one of which loads a model, on a machine that does more besides.
pytestmark = pytest.mark.timeout(400)

#: Grafana has no package of Debian's; test_grafana.py looks at its files.
NAMES = ["redis", "worker", "web", "flower", "nginx", "prometheus"]
OVERRIDES = ["nginx", "monitoring", "production"]
PASSWORDS = {"REDIS_PASSWORD": "an-open-sesame", "FLOWER_PASSWORD": "garlic"}

#: Sends many sentences as the web container would, and says their ids.
SEND = """
import json, os
from workers.infill import infill
results = infill.delay_many(["twinkle twinkle [MASK] star."] * int(os.environ["HOW_MANY"]))
print(json.dumps([each.id for each in results]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Containers]:
    """
    All services that a machine without Docker can have.

    In the end each of them ends within its grace, and none has written to its image, which
    is read-only in a container.
    """
    need(find_redis_server)
    need(find_nginx)
    if missing := programs_missing("redis-cli", "prometheus", "wget"):
        assert os.environ.get("CI") != "true", missing
        pytest.skip(f"not installed: {', '.join(missing)}")
    place = Containers(tmp_path_factory.mktemp("compose"), NAMES, OVERRIDES, PASSWORDS)
    before = contents(place)
    try:
        yield place
        place.down()
    finally:
        place.close()
    assert before == contents(place)


@pytest.fixture
def up(place) -> Containers:
    """All of them healthy, also where the test before has ended one."""
    place.up()
    return place


def contents(place: Containers) -> list[str]:
    """Return what lies in the images' folders, which are read-only in containers."""
    folder = place.folder / "images"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def client_of(place: Containers, name: str, port: int) -> httpx.Client:
    """Return a client of a service's port."""
    address = f"http://127.0.0.1:{place[name].port(port)}"
    return httpx.Client(base_url=address, trust_env=False, timeout=60)


def redis_url(place: Containers) -> str:
    """Return where Redis is on this machine, with its password."""
    return place["worker"].translated(place["worker"].service["environment"]["CELERY_BROKER_URL"])


def send_from_web(place: Containers, count: int) -> list[str]:
    """Send sentences from the web tier's own image, which has no torch; return their ids."""
    web = place["web"]
    url = redis_url(place)
    urls = {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}
    env = {**web.image.env, **urls, "HOW_MANY": str(count)}
    python = web.image.inside("/venv/bin/python")
    command = [str(python), "-c", SEND]
    done = subprocess.run(
        command, env=env, cwd=web.image.folder, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_request_goes_through_nginx_web_and_worker(up):
    """A sentence that is posted to the published port comes back with its word."""
    with client_of(up, "nginx", 8000) as client:
        answer = client.post("/predict", json={"inputs": ["twinkle twinkle [MASK] star."]})

    assert (200, {"outputs": ["little"]}) == (answer.status_code, answer.json())
    assert "nginx" == answer.headers["server"]


def test_client_is_who_asks_nginx(up):
    """The web server's log names the address that nginx saw, whatever the client says."""
    with client_of(up, "nginx", 8000) as client:
        client.get("/healthz?mine", headers={"X-Forwarded-For": "10.9.9.9"})
    (line,) = [line for line in up["web"].log.read_text().splitlines() if "?mine" in line]

    assert "127.0.0.1" in line
    assert "10.9.9.9" not in line


def test_client_with_too_many_requests_is_refused(up):
    """Beyond its rate a client gets 429 from nginx, in the form of the web server's errors."""
    port = up["nginx"].port(8000)
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


def test_counts_stay_inside(up):
    """What is for Prometheus is not told to the world."""
    with client_of(up, "nginx", 8000) as client:
        assert 404 == client.get("/metrics").status_code


def test_flower_wants_its_password(up):
    """Flower shows nothing without the password of its override, and the worker with it."""
    with client_of(up, "flower", 5555) as client:
        stranger = client.get("/workers").status_code

        def why_not() -> str:
            page = client.get(
                "/workers", params={"json": "1"}, auth=("admin", PASSWORDS["FLOWER_PASSWORD"])
            )
            return "" if page.json()["data"] else "no worker"

        wait_until(why_not, [], what="Flower", timeout=60)

    assert 401 == stranger


def test_prometheus_reaches_its_targets(up):
    """Prometheus scrapes worker and web tier by the names that its configuration has."""
    address = f"http://127.0.0.1:{up['prometheus'].port(9090)}/api/v1/targets"
    with httpx.Client(trust_env=False) as client:

        def why_not() -> str:
            targets = client.get(address).json()["data"]["activeTargets"]
            states = {each["labels"]["job"]: each["health"] for each in targets}
            wanted = {"celery_batch": "up", "celery_batch_web": "up"}
            return "" if states == wanted else str(states)

        wait_until(why_not, [], what="Prometheus", timeout=60)


def test_scaler_has_an_answer(up):
    """What KEDA asks Prometheus is one number; without Kubernetes there is no namespace."""
    (scaled,) = [each for each in built(KUBERNETES / "keda") if each["kind"] == "ScaledObject"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    query = re.sub(r'namespace="[^"]*",?', "", query)
    address = f"http://127.0.0.1:{up['prometheus'].port(9090)}/api/v1/query"
    send_from_web(up, 1)
    with httpx.Client(trust_env=False) as client:

        def why_not() -> str:
            result = client.get(address, params={"query": query}).json()["data"]["result"]
            return "" if len(result) == 1 and float(result[0]["value"][1]) >= 0 else str(result)

        wait_until(why_not, [], what="Prometheus", timeout=60)


def test_redis_wants_its_password(up):
    """A client without the password is refused; it is not in the list of processes."""
    client = redis.Redis(port=up["redis"].port(6379), retry=Retry(NoBackoff(), 0))
    with pytest.raises(redis.AuthenticationError):
        client.ping()
    client.close()
    told = up["redis"].why_not_healthy()
    (process,) = psutil.Process(up["redis"].pid).children()

    assert "" == told
    assert PASSWORDS["REDIS_PASSWORD"] not in " ".join(process.cmdline())


def test_unhealthy_is_noticed(up):
    """A health check says no where its service is not there."""
    for name in ("prometheus", "nginx"):
        up[name].stop()
        assert "" != up[name].why_not_healthy()


def test_worker_gives_back_what_it_holds(up):
    """SIGTERM ends the worker within its grace; what it had not begun waits for the next one."""
    count = 600
    ids = send_from_web(up, count)
    took = up["worker"].stop()
    reason = up["worker"].why_not_healthy()
    url = redis_url(up)
    with redis.Redis.from_url(url) as client:
        waiting = client.llen("celery")
        done = client.exists(*(f"celery-task-meta-{each}" for each in ids))
    up["worker"].start()
    with redis.Redis.from_url(url) as client:
        keys = [f"celery-task-meta-{each}" for each in ids]
        wait_until(
            lambda: "" if client.exists(*keys) == count else "not all are done",
            [],
            what="the rest",
            timeout=60,
        )

    assert count == waiting + done
    assert "has ended" in reason
    assert took < up["worker"].grace

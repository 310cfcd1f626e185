"""What we ship for Prometheus and Grafana, on a real Prometheus that scrapes a loaded worker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.conftest import need
from tests.services.servers.prometheus_server import SHIPPED, Prometheus, find_prometheus
from tests.services.setup import (
    ROOT,
    Setup,
    emptied,
    enter_setup,
    environment_of,
    open_setup,
    surroundings,
)

GRAFANA = SHIPPED.parent / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "celery_batch.json").read_text())
RULES = yaml.safe_load((SHIPPED / "alerts.yml").read_text())["groups"][0]["rules"]

#: What Grafana fills in.
FILLED_IN = {"$task": ".+", "$instance": ".+", "$__rate_interval": "30s"}


def queries() -> dict[str, str]:
    """Return every query of the dashboard, and of each alert what it compares."""
    found = {}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in FILLED_IN.items():
                query = query.replace(name, value)
            found[f"{panel['title']} {target['refId']}"] = query
    for rule in RULES:
        # Without its bounds, or it would find something on bad days only.
        found[rule["alert"]] = re.sub(r"\s*(==|[<>]=?)\s*[\d.]+", "", rule["expr"])
    return found


class Load:
    """A worker that is kept at work, and a Prometheus that looks on."""

    def __init__(self, setup: Setup, features: Setup, prometheus: Prometheus) -> None:
        self.setup, self.features = setup, features
        self.prometheus = prometheus

    def lacking(self) -> str:
        """Send some work, and name the queries that find nothing."""
        results = [self.setup.double.delay(n) for n in range(20)]
        results += [self.setup.odd.delay(word) for word in ("good", "bad")]
        features = self.features  # tasks with a cost, a cache, a latency target, keys, fixed sizes
        results += [features.tokens.delay("abc"), features.cached.delay(1), features.paced.delay(1)]
        results += [features.spoken.delay("a"), *features.sizes.delay_many([1, 1, 2])]
        results += features.hungry.delay_many(range(8))  # which runs out of memory
        for result in results:
            result.get(timeout=30, propagate=False)
        return ", ".join(
            name for name, query in queries().items() if not self.prometheus.values(query)
        )


@pytest.fixture(scope="module")
def load(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Two loaded workers, with a GPU that is none, and a Prometheus with our configuration."""
    need(find_prometheus)
    folder = tmp_path_factory.mktemp("dashboard")
    nvml = ROOT / "tests" / "services" / "nvml"
    environment = {"CELERY_BATCH_METRICS": "127.0.0.1:0", "PYTHONPATH": f"{nvml}:{ROOT}"}
    with open_setup(emptied(redis_server), folder) as setup, _features(setup, folder) as features:
        workers = [each.worker("-c", "1", **environment) for each in (setup, features)]
        targets = [each.ask("batch_stats")["metrics"].split("/")[2] for each in workers]
        prometheus = Prometheus(folder, {"celery_batch": targets})
        try:
            yield Load(setup, features, prometheus)
        finally:
            prometheus.child.stop()


@contextmanager
def _features(setup: Setup, folder: Path) -> Iterator[Setup]:
    """Have another app on the same broker."""
    environment = environment_of(setup.url, queue="features")
    with surroundings(environment):
        features = enter_setup(environment, folder, "tests.apps.features")
        try:
            yield features
        finally:
            features.close()


def test_every_query_finds_something(load: Load):
    """Each panel of the dashboard has something to show, and each alert something to compare."""
    children = [load.prometheus.child]

    wait_until(load.lacking, children, what="the dashboard", timeout=90)


def test_every_metric_has_a_panel(load: Load):
    """What a worker counts or measures is on the dashboard, or in an alert."""
    found = load.prometheus.ask("label/__name__/values")
    names = {re.sub("_(bucket|count|sum)$", "", name) for name in found}  # of a histogram any
    shown = " ".join(queries().values())

    assert [] == [name for name in names if name.startswith("celery_batch_") and name not in shown]


def test_rules_are_evaluated_without_an_error(load: Load):
    """Prometheus has taken in all of our alerts, and none is in a bad state."""

    def not_yet() -> str:
        rules = [
            rule for group in load.prometheus.ask("rules")["groups"] for rule in group["rules"]
        ]
        wrong = [f"{rule['name']}: {rule['health']}" for rule in rules if rule["health"] != "ok"]
        return ", ".join(wrong) if len(rules) == len(RULES) else f"{len(rules)} rules"

    wait_until(not_yet, [load.prometheus.child], what="the rules", timeout=60)


def test_alert_fires(load: Load, redis_server: RedisServer):
    """Garbage in the queue is refused by the worker, counted, scraped and told."""
    children = [load.prometheus.child]

    def unseen() -> str:
        found = load.prometheus.values("celery_batch_refused_messages_total")
        return "" if found == [0.0, 0.0] else f"it was {found}"

    def silent() -> str:
        alerts = load.prometheus.ask("alerts")["alerts"]
        names = [each["labels"]["alertname"] for each in alerts if each["state"] == "firing"]
        return "" if "CeleryBatchRefusedMessages" in names else f"firing: {names}"

    wait_until(unseen, children, what="a scrape", timeout=60)
    with redis.Redis(unix_socket_path=str(redis_server.directory / "redis.sock")) as client:
        client.lpush("celery", "garbage")
    wait_until(silent, children, what="the alert", timeout=60)


def provisioned(name: str) -> Any:
    """Read a file that Grafana reads when it starts."""
    return yaml.safe_load((GRAFANA / "provisioning" / name).read_text())

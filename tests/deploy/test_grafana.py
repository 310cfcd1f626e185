"""Grafana's files, compared with each other and with where the compose file puts them."""

from __future__ import annotations

import json

import yaml

from tests.conftest import ROOT
from tests.deploy.files.compose import read_compose

GRAFANA = ROOT / "deploy" / "grafana"
PROVISIONING = GRAFANA / "provisioning"
SERVICES = read_compose("monitoring")["services"]


def provisioned(kind: str, key: str) -> dict:
    """Return the one thing of a kind that Grafana is told of when it starts."""
    (file,) = (PROVISIONING / kind).glob("*.y*ml")
    said = yaml.safe_load(file.read_text())
    (found,) = said[key]

    assert 1 == said["apiVersion"]
    return found


def test_dashboards_lie_where_grafana_looks():
    """The folder that is mounted is the one that Grafana is told to read."""
    provider = provisioned("dashboards", "providers")
    mounts = dict(each.split(":")[:2] for each in SERVICES["grafana"]["volumes"])

    assert "file" == provider["type"]
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert "/etc/grafana/provisioning" == mounts["./deploy/grafana/provisioning"]
    assert list((GRAFANA / "dashboards").glob("*.json"))


def test_data_come_from_the_prometheus_beside_it():
    """The data source is the service of that name, at its port."""
    source = provisioned("datasources", "datasources")
    prometheus = SERVICES["prometheus"]

    assert f"http://prometheus:{prometheus['expose'][0]}" == source["url"]
    assert "prometheus" in SERVICES["grafana"]["depends_on"]


def test_dashboards_ask_the_data_source_that_is_there():
    """Each dashboard is JSON with a title, and its panels ask the data source, or whichever."""
    uid = provisioned("datasources", "datasources")["uid"]
    for file in (GRAFANA / "dashboards").glob("*.json"):
        dashboard = json.loads(file.read_text())
        sources = {json.dumps(panel.get("datasource")) for panel in dashboard["panels"]}

        assert dashboard["title"]
        assert dashboard["uid"]
        assert all(each == "null" or uid in each or "${" in each for each in sources), sources

"""What deploy/ has for Prometheus and Grafana."""

from __future__ import annotations

import json

import yaml

from tests.integration.service import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"


def panels() -> dict[str, str]:
    """The expressions of all panels, by dashboard, panel and legend."""
    found = {}
    for file in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                found[f"{file.stem}: {panel['title']}: {target['legendFormat']}"] = target["expr"]
    return found


def alerts() -> dict[str, str]:
    """The expression of each alert."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def expressions() -> list[str]:
    """All of them."""
    return [*panels().values(), *alerts().values()]

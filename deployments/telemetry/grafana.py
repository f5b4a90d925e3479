"""Dashboards and alert rules as files: `python -m deployments.telemetry.grafana FOLDER`.

The files in helm/loraplex/dashboards are made by it, and a test makes them again and compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from deployments.telemetry.alerts import rules
from deployments.telemetry.boards import boards
from deployments.telemetry.panels import Board, Panel
from deployments.telemetry.queries import Queries
from deployments.telemetry.ray_endpoint import RAY_PREFIX

ACROSS, WIDTH, HEIGHT = 2, 12, 8
"""Panels side by side, and the size of one, in Grafana's grid of 24 columns."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ALERTS = "alerts.yaml"


def files(prefix: str = RAY_PREFIX) -> dict[str, str]:
    """Their content, by name."""
    made = {f"{b.uid}.json": _json(dashboard(b, prefix)) for b in boards(Queries(prefix))}
    made[ALERTS] = yaml.safe_dump(rules(prefix), sort_keys=False, width=100)
    return made


def dashboard(board: Board, prefix: str) -> dict[str, Any]:
    """As Grafana imports it. It has no id of its own, so that importing it again replaces it."""
    return {
        "uid": f"loraplex-{board.uid}",
        "title": board.title,
        "tags": ["loraplex"],
        "schemaVersion": 39,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_source(), *(_choice(n, i, prefix) for n, i in board.choices)]},
        "panels": [_panel(number, panel) for number, panel in enumerate(board.panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, ACROSS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(65 + n), "expr": query, "legendFormat": legend, "datasource": SOURCE}
            for n, (legend, query) in enumerate(panel.lines)
        ],
    }


def _source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _choice(label: str, instrument: Any, prefix: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": f"label_values({Queries(prefix).name(instrument)}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def main(
    folder: Annotated[Path, typer.Argument(help="where to write them")],
    prefix: Annotated[
        str, typer.Option(help='before the names: "" behind an OpenTelemetry collector')
    ] = RAY_PREFIX,
) -> None:
    """Write the dashboards and the alert rules."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(prefix).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    typer.run(main)

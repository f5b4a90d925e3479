"""Dashboards and alert rules are what the instruments say, and the rules fire when they should."""

from __future__ import annotations

import json
import re
import subprocess

import yaml

from deployments.telemetry import instruments as i
from deployments.telemetry.alerts import alerts
from deployments.telemetry.boards import boards
from deployments.telemetry.grafana import files
from deployments.telemetry.instrument import Kind
from deployments.telemetry.queries import Queries
from tests.support.prometheus import tool

NAME = re.compile(r"\bray_loraplex_\w+")


def known_names() -> set[str]:
    names = set()
    for instrument in i.ALL:
        name = f"ray_{instrument.prometheus}"
        is_histogram = instrument.kind is Kind.HISTOGRAM
        parts = ("_bucket", "_sum", "_count") if is_histogram else ("",)
        names |= {name + part for part in parts}
    return names


def test_the_files_are_what_the_script_makes(project):
    folder = project / "helm" / "loraplex" / "dashboards"
    made = files()
    assert {path.name for path in folder.iterdir()} == made.keys()
    for name, text in made.items():
        assert (folder / name).read_text() == text, (
            f"{name} is out of date: python -m deployments.telemetry.grafana {folder.name}"
        )


def test_queries_name_nothing_but_instruments():
    used = set()
    for text in files().values():
        used |= set(NAME.findall(text))
    assert used <= known_names(), used - known_names()


def test_every_instrument_is_on_a_board():
    text = "".join(files().values())
    missing = [x.name for x in i.ALL if f"ray_{x.prometheus}" not in text]
    assert not missing


def test_panels_are_labelled_and_have_a_unit():
    for board in boards(Queries("ray_")):
        titles = [panel.title for panel in board.panels]
        assert len(set(titles)) == len(titles)
        for panel in board.panels:
            assert panel.title and panel.unit and panel.lines
            assert all(legend and query for legend, query in panel.lines)
    for name, text in files().items():
        if name.endswith(".json"):
            board = json.loads(text)
            spots = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]]
            assert len(set(spots)) == len(spots)


def test_behind_a_collector_names_have_no_prefix():
    for text in files(prefix="").values():
        assert "ray_" not in text and "loraplex_requests" in text or "loraplex_step" in text


def test_alerts_have_remedies():
    for alert in alerts("ray_"):
        assert alert.name.startswith("Loraplex") and len(alert.remedy) > 40
    (fall,) = (a for a in alerts("ray_") if a.name == "LoraplexHitRateFalls")
    assert "hot set" in fall.remedy and "warm-up" in fall.remedy
    assert "replicas don't help" in fall.remedy


def test_promtool_finds_the_rules_sound_and_they_fire_when_they_should(project):
    promtool = tool("promtool", project)
    rules = project / "helm" / "loraplex" / "dashboards" / "alerts.yaml"
    cases = project / "tests" / "deployments" / "telemetry" / "alerts_test.yaml"
    for command in (["check", "rules", str(rules)], ["test", "rules", str(cases)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = {
        case["alertname"]
        for t in yaml.safe_load(cases.read_text())["tests"]
        for case in t["alert_rule_test"]
    }
    assert tested == {alert.name for alert in alerts("ray_")}

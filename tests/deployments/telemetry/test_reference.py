"""docs/observability.md says of the metrics what the code says."""

from __future__ import annotations

import pytest

from deployments.telemetry.alerts import alerts
from deployments.telemetry.reference import with_table
from deployments.telemetry.section import TelemetrySection


def test_the_page_has_the_present_table_and_every_alert_and_key(project):
    page = (project / "docs" / "observability.md").read_text()
    assert page == with_table(page), (
        "out of date: python -m deployments.telemetry.reference docs/observability.md"
    )
    assert all(f"`{alert.name}`" in page for alert in alerts("ray_"))
    tracing = (project / "docs" / "tracing.md").read_text()
    assert all(f"{key}" in page + tracing for key in TelemetrySection.model_fields)


def test_a_page_without_a_place_for_the_table_is_refused():
    with pytest.raises(ValueError, match="no lines"):
        with_table("# Metrics\n")

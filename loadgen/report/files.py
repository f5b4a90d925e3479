"""A report's files in a run's folder."""

from __future__ import annotations

import json
from pathlib import Path

from loadgen.client.run import Run
from loadgen.report.markdown import markdown
from loadgen.report.page import page
from loadgen.report.plots import all_plots
from loadgen.report.slo import Slo
from loadgen.report.summary import Report, summarise

PLOTS = "plots"


def write(run: Run, slo: Slo, folder: Path) -> Report:
    """report.json, report.md, report.html and plots/*.svg."""
    report = summarise(run, slo)
    plots = all_plots(run, report)
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    for plot in plots:
        (folder / PLOTS / f"{plot.name}.svg").write_text(plot.svg, encoding="utf-8")
    values = json.dumps(report.to_json(), indent=1)
    (folder / "report.json").write_text(values + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(report, plots), encoding="utf-8")
    (folder / "report.html").write_text(page(report, plots), encoding="utf-8")
    return report

"""The look of every plot, and figures as SVG. No state of matplotlib's own is used or left."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from loadgen.report.words import seconds

WIDTH, HEIGHT = 6.4, 3.2
MIN_S = 1e-3
"""Nothing shorter is drawn: between two pieces that came in one read there is no time."""
LOG_TICKS = (
    (1.3, (1.0, 2.0, 3.0, 5.0, 7.0)),
    (2.2, (1.0, 2.0, 5.0)),
    (3.8, (1.0, 3.0)),
    (math.inf, (1.0,)),
)
"""(decades below, where in each of them ticks are): from three to nine of them."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#5f5f5f")
"""Told apart by colour-blind eyes too (after Okabe and Ito)."""
INK, FAINT = "#222222", "#b8b8b8"
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "loadgen",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


@contextmanager
def axes(height: float = HEIGHT, rows: int = 1) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """A figure of `rows` axes above one another with one x axis, in the look of all."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        grid = figure.subplots(rows, 1, sharex=True, squeeze=False)
        yield figure, [grid[row][0] for row in range(rows)]


def svg(figure: Figure) -> str:
    """Without a date, so that the same run gives the same bytes."""
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def log_seconds(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic axis around `values`, whose ticks read 10 ms, 2 s and so on."""
    low, high = max(min(values), MIN_S) / 1.15, max(*values, MIN_S) * 1.15
    decades = math.log10(high / low)
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    if decades < 0.7:
        places = MaxNLocator(5, steps=[1, 2, 2.5, 5]).tick_values(low, high)
        axis.set_major_locator(FixedLocator([p for p in places if low <= p <= high]))
    else:
        subs = next(subs for most, subs in LOG_TICKS if decades < most)
        axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=99))
    axis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axis.set_minor_locator(NullLocator())


def legend(axes_: Axes, columns: int = 1, markers: float = 1.0) -> None:
    """Outside, above the plot: it hides nothing. markers: their size, of the plot's."""
    handles, labels = axes_.get_legend_handles_labels()
    if handles:
        axes_.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=columns,
            borderaxespad=0.1,
            handlelength=1.4,
            markerscale=markers,
            columnspacing=1.2,
        )

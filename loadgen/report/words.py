"""Numbers as a person reads them, with their unit."""

from __future__ import annotations

NONE = "–"


def seconds(value: float | None) -> str:
    """Three digits, in the unit that fits."""
    if value is None:
        return NONE
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms" if value < 0.9995 else "1 s"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def number(value: float | None) -> str:
    if value is None:
        return NONE
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def part(value: float | None) -> str:
    """As percent."""
    if value is None:
        return NONE
    return f"{value * 100:.1f} %" if abs(value) < 0.9995 or value == 1 else "99.9 %"


def of(some: int, every: int) -> str:
    """A part of a count, as percent."""
    return part(some / every) if every else NONE

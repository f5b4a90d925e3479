"""Which rotary embedding a backbone uses. Standard library only.

Read from `rope_parameters` (transformers 5) or from `rope_theta` with `rope_scaling` (before it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import UnsupportedModel

RopeKind = Literal["default", "linear", "llama3"]
DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """theta is the base. linear divides every frequency by `factor`; llama3 only the long waves,
    blending between `original_max_position` over `low_freq_factor` and over `high_freq_factor`."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position: int = 0


def read_rope(config: Mapping[str, Any]) -> RopeSpec:
    """Raises UnsupportedModel for every other kind, naming the field."""
    field = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    values = config.get(field) or {}
    if not isinstance(values, Mapping) or any(isinstance(v, Mapping) for v in values.values()):
        raise UnsupportedModel(f"config.json: {field} must be one flat object for all layers")
    if values.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"config.json: {field}.partial_rotary_factor must be 1")
    theta = values.get("rope_theta", config.get("rope_theta"))
    theta = _number(field, "rope_theta", DEFAULT_THETA if theta is None else theta)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return RopeSpec(theta)
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(
            f"config.json: {field}.rope_type {kind!r} is not one of default, linear, llama3"
        )
    factor = _number(field, "factor", values.get("factor", 0))
    if kind == "linear":
        return RopeSpec(theta, "linear", factor)
    low = _number(field, "low_freq_factor", values.get("low_freq_factor", 0))
    high = _number(field, "high_freq_factor", values.get("high_freq_factor", 0))
    name = "original_max_position_embeddings"
    original = _number(field, name, values.get(name, config.get("max_position_embeddings", 0)))
    if high <= low:
        raise UnsupportedModel(f"config.json: {field}.high_freq_factor must exceed low_freq_factor")
    return RopeSpec(theta, "llama3", factor, low, high, int(original))


def _number(field: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UnsupportedModel(f"config.json: {field}.{name} must be a positive number: {value!r}")
    return float(value)

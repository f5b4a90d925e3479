"""What the registry keeps of pins: all of them in one record, so that one compare-and-set changes
them within their budget. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deployments.registry.records import known_fields

PINS = "pins"
"""The record's key."""
PIN_VERSION = 1


@dataclass(frozen=True, slots=True)
class PinRecord:
    """An adapter that is kept near, whatever version its name stands for.

    on_device     kept on the device; else in host memory
    replicas      on so many of its owners; 0: on all replicas
    num_elements  of the version that the name stood for, which the budget counts
    """

    tenant: str
    name: str
    on_device: bool
    replicas: int
    num_elements: int
    by: str
    created_s: float

    def is_of(self, tenant: str, name: str) -> bool:
        return (self.tenant, self.name) == (tenant, name)


def pins_to_value(pins: Iterable[PinRecord]) -> dict[str, Any]:
    """Of the record under `PINS`: by tenant and name."""
    ordered = sorted(pins, key=lambda p: (p.tenant, p.name))
    return {"v": PIN_VERSION, "pins": [asdict(pin) for pin in ordered]}


def pins_from_value(value: Mapping[str, Any]) -> tuple[PinRecord, ...]:
    """Raises ValueError for what another release wrote."""
    pins = ({**pin, "v": value.get("v")} for pin in value.get("pins", ()))
    return tuple(PinRecord(**known_fields(PinRecord, pin, PIN_VERSION)) for pin in pins)

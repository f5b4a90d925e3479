"""What the registry keeps of a pin. Its keys begin with `PINS`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deployments.registry.records import known_fields

PINS = "pin/"
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

    @property
    def key(self) -> str:
        return pin_key(self.tenant, self.name)

    def to_value(self) -> dict[str, Any]:
        return {"v": PIN_VERSION, **asdict(self)}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> PinRecord:
        return cls(**known_fields(cls, value, PIN_VERSION))


def pin_key(tenant: str, name: str) -> str:
    return f"{PINS}{tenant}/{name}"

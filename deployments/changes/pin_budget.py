"""How much may be pinned: the section `pins` of the configuration, resolved to bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from deployments.config_sections import Auto, Section
from engine.config import EngineConfig

Bytes = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes that may be pinned in a tier of one replica: by all tenants, and by one of them."""

    total_bytes: int
    tenant_bytes: int


@dataclass(frozen=True, slots=True)
class Budgets:
    device: Budget
    host: Budget


class PinsSection(Section):
    """What may be pinned of a replica's tiers, by all tenants together and by one. "auto": half of
    the tier and a quarter; where a GPU finds its arena's size by itself, of host memory instead."""

    device_bytes: Bytes | Auto = "auto"
    host_bytes: Bytes | Auto = "auto"
    tenant_device_bytes: Bytes | Auto = "auto"
    tenant_host_bytes: Bytes | Auto = "auto"

    def budgets(self, engine: EngineConfig) -> Budgets:
        memory = engine.memory
        device = memory.host_bytes if memory.arena_bytes is None else memory.arena_bytes
        return Budgets(
            Budget(_of(self.device_bytes, device // 2), _of(self.tenant_device_bytes, device // 4)),
            Budget(
                _of(self.host_bytes, memory.host_bytes // 2),
                _of(self.tenant_host_bytes, memory.host_bytes // 4),
            ),
        )


def _of(given: int | Auto, auto: int) -> int:
    return auto if given == "auto" else given

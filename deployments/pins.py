"""Pins in the registry, within a budget. Blocking; an event loop calls it from a thread."""

from __future__ import annotations

from collections.abc import Callable

from deployments.pin_budget import Budgets
from deployments.registry.pin_record import PINS, PinRecord, pin_key
from deployments.registry.records import check_name
from deployments.registry.registry import Registry
from engine.errors import Conflict, NotFound


class PinBudgetExceeded(Conflict):
    code = "pin_budget_exceeded"


class Pins:
    """itemsize: bytes of one element in the serving dtype. clock: Unix seconds.

    The budget counts every pin as if all of them lay on one replica: their owners can be the same.
    """

    def __init__(
        self,
        registry: Registry,
        budgets: Budgets,
        itemsize: int,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._budgets = budgets
        self._itemsize = itemsize
        self._clock = clock

    def all(self) -> list[PinRecord]:
        return [PinRecord.from_value(e.value) for e in self._registry.list(PINS).entries]

    def pin(
        self, tenant: str, name: str, num_elements: int, on_device: bool, replicas: int, by: str
    ) -> PinRecord:
        """Pins it, in the place of an earlier pin of the same adapter. Raises PinBudgetExceeded."""
        record = PinRecord(tenant, name, on_device, replicas, num_elements, by, self._clock())
        others = [p for p in self.all() if p.key != record.key and p.on_device == on_device]
        budget = self._budgets.device if on_device else self._budgets.host
        own = [p for p in others if p.tenant == tenant]
        self._check(record, others, budget.total_bytes, "All pins together")
        self._check(record, own, budget.tenant_bytes, f"Pins of tenant {tenant}")
        self._registry.put(record.key, record.to_value(), None)
        return record

    def unpin(self, tenant: str, name: str) -> PinRecord:
        """Raises NotFound where it isn't pinned."""
        key = pin_key(check_name(tenant, "tenant"), check_name(name, "name"))
        entry = self._registry.get(key)
        if entry is None:
            raise NotFound(f"{tenant}/{name} is not pinned.", param="name")
        self._registry.delete(key, None)
        return PinRecord.from_value(entry.value)

    def num_bytes(self, record: PinRecord) -> int:
        return record.num_elements * self._itemsize

    def _check(self, record: PinRecord, others: list[PinRecord], limit: int, who: str) -> None:
        held = sum(self.num_bytes(p) for p in others)
        wanted = self.num_bytes(record)
        if held + wanted > limit:
            where = "on the device" if record.on_device else "in host memory"
            raise PinBudgetExceeded(
                f"{record.tenant}/{record.name} takes {wanted} bytes. {who} may take {limit}"
                f" {where} and take {held} already. Unpin another, or raise the budget (pins in"
                " the configuration).",
                param="name",
            )

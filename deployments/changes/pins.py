"""Pins in the registry, within a budget. Blocking; an event loop calls it from a thread."""

from __future__ import annotations

from collections.abc import Callable

from deployments.changes.compare_and_set import update
from deployments.changes.pin_budget import Budgets
from deployments.registry.pin_record import PINS, PinRecord, pins_from_value, pins_to_value
from deployments.registry.records import check_name
from deployments.registry.registry import Registry
from engine.errors import Conflict, NotFound

All = tuple[PinRecord, ...]


class PinBudgetExceeded(Conflict):
    code = "pin_budget_exceeded"


class Pins:
    """itemsize: bytes of one element in the serving dtype.

    The budget counts every pin as if all of them lay on one replica: their owners can be the same.
    """

    def __init__(
        self,
        registry: Registry,
        budgets: Budgets,
        itemsize: int,
    ) -> None:
        self._registry = registry
        self._budgets = budgets
        self._itemsize = itemsize

    def all(self, tenant: str | None = None) -> All:
        """By tenant and name; of one tenant, None: of all."""
        entry = self._registry.get(PINS)
        pins = () if entry is None else pins_from_value(entry.value)
        return tuple(p for p in pins if tenant in (None, p.tenant))

    def pin(self, pin: PinRecord, quota_bytes: int | None = None) -> None:
        """In the place of an earlier pin of the same adapter. quota_bytes: what its tenant may have
        in that tier of a replica at all. Raises PinBudgetExceeded; Conflict where others keep
        changing the pins."""

        def pinned(pins: All) -> All:
            others = tuple(p for p in pins if not p.is_of(pin.tenant, pin.name))
            self._check_budgets(pin, [p for p in others if p.on_device == pin.on_device])
            if quota_bytes is not None:
                self._check_quota(pin, others, quota_bytes)
            return (*others, pin)

        self._update(pinned)

    def unpin(self, tenant: str, name: str) -> PinRecord:
        """Raises NotFound where it isn't pinned; Conflict as `pin` does."""
        check_name(tenant, "tenant")
        check_name(name, "name")
        ended: list[PinRecord] = []

        def unpinned(pins: All) -> All:
            ended[:] = [p for p in pins if p.is_of(tenant, name)]
            if not ended:
                raise NotFound(f"{tenant}/{name} is not pinned.", param="name")
            return tuple(p for p in pins if not p.is_of(tenant, name))

        self._update(unpinned)
        return ended[0]

    def _update(self, change: Callable[[All], All]) -> None:
        """Apply `change` to the pins as they are when they are written: two at once can't pass a
        budget that has room for one."""
        update(
            self._registry,
            PINS,
            pins_from_value,
            pins_to_value,
            lambda pins: change(pins or ()),
            "The record of all pins",
        )

    def num_bytes(self, record: PinRecord) -> int:
        return record.num_elements * self._itemsize

    def _check_budgets(self, pin: PinRecord, others: list[PinRecord]) -> None:
        """others: of its tier."""
        budget = self._budgets.device if pin.on_device else self._budgets.host
        own = [p for p in others if p.tenant == pin.tenant]
        raise_it = "raise the budget (pins in the configuration)"
        said = self._excess(pin, own, budget.tenant_bytes, f"Pins of tenant {pin.tenant}")
        if said:
            raise PinBudgetExceeded(f"{said} Unpin another, or {raise_it}.", param="name")
        said = self._excess(pin, others, budget.total_bytes, "All pins together")
        if said:
            raise PinBudgetExceeded(
                f"{said} Unpin another, or {raise_it}.",
                param="name",
                public="All tenants' pins leave no room for it. Ask the service's operator.",
            )

    def _check_quota(self, pin: PinRecord, others: All, quota_bytes: int) -> None:
        own = [p for p in others if p.tenant == pin.tenant and p.on_device == pin.on_device]
        said = self._excess(pin, own, quota_bytes, f"Adapters of tenant {pin.tenant}")
        if said:
            raise PinBudgetExceeded(
                f"{said} Unpin another, or raise the tenant's quota (tenants change).", param="name"
            )

    def _excess(self, pin: PinRecord, others: list[PinRecord], limit: int, who: str) -> str:
        """What is over the limit, in a sentence; "": nothing."""
        held, wanted = sum(self.num_bytes(p) for p in others), self.num_bytes(pin)
        if held + wanted <= limit:
            return ""
        where = "on the device" if pin.on_device else "in host memory"
        return (
            f"{pin.tenant}/{pin.name} takes {wanted} bytes. {who} may take {limit} {where}, and"
            f" pins take {held} of them already."
        )

"""What a replica is told of tiers and tenants, beside requests: plain values, so that releases mix.

    prefetch  {"v": 1, "ref": ..., "to_device": bool, "ordered": bool, "tenant": ... or None,
               "slots": [rank, ...] or None, "retry": bool}
    retry     {"v": 1, "refs": [..., ...]}
    pins      {"v": 1, "pins": [{"ref": ..., "on_device": bool, "slots": [rank, ...]}, ...]}
    limits    {"v": 1, "tenants": [{..., "rev": of the tenant's record}, ...]}

`slots` says which replicas are meant; None: whoever gets it. `retry`: also after a failure that is
remembered (`messages.Retry`). No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.adapters.residency import DEVICE, HOST, LOADING
from engine.errors import ErrorInfo, InvalidRequest
from engine.messages import Pin, Prefetch, Retry, SetPins
from engine.types import AdapterRef, Tenant, adapter_from_wire, adapter_to_wire

ORDER_VERSION = 1


@dataclass(frozen=True, slots=True)
class SlotPin:
    """A pin on the replicas of these slots."""

    ref: AdapterRef
    on_device: bool
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """A tenant as its record has it at this revision of the registry."""

    tenant: Tenant
    rev: int


def prefetch_order(
    ref: AdapterRef,
    *,
    to_device: bool,
    ordered: bool,
    tenant: Tenant | None = None,
    slots: Sequence[int] | None = None,
    retry: bool = False,
) -> dict[str, Any]:
    return {
        "v": ORDER_VERSION,
        "ref": adapter_to_wire(ref),
        "to_device": to_device,
        "ordered": ordered,
        "tenant": None if tenant is None else asdict(tenant),
        "slots": None if slots is None else list(slots),
        "retry": retry,
    }


def retry_order(refs: Iterable[AdapterRef]) -> dict[str, Any]:
    return {"v": ORDER_VERSION, "refs": [adapter_to_wire(ref) for ref in refs]}


def pins_order(pins: Iterable[SlotPin]) -> dict[str, Any]:
    wires = [
        {"ref": adapter_to_wire(p.ref), "on_device": p.on_device, "slots": list(p.slots)}
        for p in pins
    ]
    return {"v": ORDER_VERSION, "pins": wires}


def limits_order(limits: Iterable[TenantLimits]) -> dict[str, Any]:
    tenants = [{**asdict(one.tenant), "rev": one.rev} for one in limits]
    return {"v": ORDER_VERSION, "tenants": tenants}


def read_prefetch(order: Mapping[str, Any], slot: int) -> list[Retry | Prefetch]:
    """What to tell the core, the wish last. Empty: it is for other replicas. Raises InvalidRequest
    for an order that can't be read."""
    _check_version(order)
    try:
        if order["slots"] is not None and slot not in order["slots"]:
            return []
        tenant = order["tenant"]
        wish = Prefetch(
            adapter_from_wire(order["ref"]),
            to_device=bool(order["to_device"]),
            is_ordered=bool(order["ordered"]),
            tenant=None if tenant is None else _tenant(tenant),
        )
        return [Retry(wish.ref), wish] if order.get("retry") else [wish]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"The order can't be read: {error!r}.") from None


def read_retry(order: Mapping[str, Any]) -> list[Retry]:
    """Raises InvalidRequest for an order that can't be read."""
    _check_version(order)
    try:
        return [Retry(adapter_from_wire(ref)) for ref in order["refs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"The order can't be read: {error!r}.") from None


def read_pins(order: Mapping[str, Any], slot: int) -> SetPins:
    """This replica's. Raises InvalidRequest for an order that can't be read."""
    _check_version(order)
    try:
        mine = [pin for pin in order["pins"] if slot in pin["slots"]]
        pins = (Pin(adapter_from_wire(p["ref"]), bool(p["on_device"])) for p in mine)
        return SetPins(tuple(pins))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"The order can't be read: {error!r}.") from None


def read_limits(order: Mapping[str, Any]) -> list[TenantLimits]:
    """Raises InvalidRequest for an order that can't be read. A release that says no revision is
    taken for the oldest."""
    _check_version(order)
    try:
        return [TenantLimits(_tenant(w), int(w.get("rev", 0))) for w in order["tenants"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"The order can't be read: {error!r}.") from None


def place_of(places: int, failed: ErrorInfo | None) -> dict[str, Any]:
    """The nearest of a version's places (`residency.places_of`) by name, or its failure: why, and
    public for tenants."""
    for tier, place in (("device", DEVICE), ("host", HOST), ("loading", LOADING)):
        if places & place:
            return {"tier": tier, "why": None}
    if failed is None:
        return {"tier": "cold", "why": None}
    public = failed.public or failed.message
    return {"tier": "failed", "why": failed.message, "public": public}


def _tenant(wire: Mapping[str, Any]) -> Tenant:
    return Tenant(**{k: v for k, v in wire.items() if k in Tenant.__dataclass_fields__})


def _check_version(order: Mapping[str, Any]) -> None:
    if order.get("v") != ORDER_VERSION:
        raise InvalidRequest(f"Order version {order.get('v')} is not {ORDER_VERSION}.")

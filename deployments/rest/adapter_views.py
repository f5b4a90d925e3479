"""Adapters, versions and tenants as an admin sees them in JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deployments.changes.tenants import TenantView
from deployments.ingress.auth import Caller
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import TenantRecord
from deployments.registry.version_record import VersionRecord

TIERS = ("device", "host", "loading")
"""Of a replica's report, nearest first."""


def adapter_view(record: AdapterRecord, reader: Caller) -> dict[str, Any]:
    """What the registry says; to an operator also where it is stored. ended: the newest first;
    condemned: how many older versions wait to be removed."""
    return {
        "object": "adapter",
        "tenant": record.tenant,
        "name": record.name,
        "model": f"{record.tenant}/{record.name}",
        "status": record.status,
        "digest": record.current,
        "aliases": {
            name: {
                "digest": alias.digest,
                "canary": alias.canary,
                "weight": alias.weight,
                "history": list(alias.history),
                "gate": alias.gate,
                "ended": [{**asdict(e), "why": reader.shown(e.why)} for e in reversed(alias.ended)],
            }
            for name, alias in sorted(record.aliases.items())
        },
        "versions": [_version_view(v, reader) for v in reversed(record.versions)],
        "condemned": len(record.condemned),
    }


def resident_view(
    record: AdapterRecord, replicas: Sequence[Mapping[str, Any]], reader: Caller
) -> dict[str, Any]:
    """With where its current version is: `status` becomes loading or resident while some replica
    says so, and failed where one couldn't load it and none has it."""
    view = adapter_view(record, reader)
    ref = record.ref
    if ref is None:
        return {**view, "replicas": []}
    places = [p for r in replicas if (p := _place(ref.key, r, reader.is_operator)) is not None]
    tiers = {p["tier"] for p in places}
    if tiers & {"device", "host"}:
        view["status"] = "resident"
    elif "loading" in tiers:
        view["status"] = "loading"
    elif "failed" in tiers:
        view["status"] = "failed"
    return {**view, "replicas": places}


def tenant_view(view: TenantView) -> dict[str, Any]:
    return {**tenant_fields(view.record), "keys": list(view.keys)}


def tenant_fields(record: TenantRecord) -> dict[str, Any]:
    return {
        "object": "tenant",
        "id": record.id,
        "weight": record.weight,
        "max_concurrent": record.max_concurrent,
        "max_queued": record.max_queued,
        "max_tokens_per_minute": record.max_tokens_per_minute,
        "suspended": record.suspended,
        "self_publish": record.self_publish,
        "log_content": record.log_content,
        "max_adapters": record.max_adapters,
        "max_adapter_bytes": record.max_adapter_bytes,
        "max_rank": record.max_rank,
        "max_host_bytes": record.max_host_bytes,
        "max_device_bytes": record.max_device_bytes,
        "soft_kv_share": record.soft_kv_share,
        "hard_kv_share": record.hard_kv_share,
        "allowed_ranks": list(record.allowed_ranks),
        "created_s": record.created_s,
    }


def _version_view(version: VersionRecord, reader: Caller) -> dict[str, Any]:
    ref = version.ref
    return {
        **({"uri": ref.uri} if reader.is_operator else {}),
        "digest": ref.digest,
        "base_revision": ref.base_revision,
        "ranks": list(ref.ranks),
        "num_elements": ref.num_elements,
        "num_bytes": ref.num_bytes,
        "base": version.base,
        "asserted_by": _shown(version.asserted_by, reader),
        "published_s": version.published_s,
        "by": reader.shown(version.by),
        "modules": list(version.modules),
        "num_modules": version.num_modules,
        "warnings": list(version.warnings),
        "retired_s": version.retired_s,
        "retired_by": _shown(version.retired_by, reader),
        "probes": [asdict(p) for p in version.probes],
    }


def _shown(signature: str | None, reader: Caller) -> str | None:
    return None if signature is None else reader.shown(signature)


def place_view(place: Mapping[str, Any], to_operator: bool) -> dict[str, Any]:
    """A replica's answer to a prefetch (`tier_orders.place_of`)."""
    why = place["why"] if to_operator else place.get("public")
    return {"slot": place["slot"], "tier": place["tier"], "why": why}


def _place(key: str, replica: Mapping[str, Any], to_operator: bool) -> dict[str, Any] | None:
    """Where `key` is on one replica: {slot, tier, why (of a failure)}."""
    residency = replica.get("residency", {})
    for tier in TIERS:
        if key in residency.get(tier, ()):
            return {"slot": replica.get("slot"), "tier": tier, "why": None}
    failed = replica.get("failed", {})
    if key in failed:
        why = failed[key] if to_operator else replica.get("failed_public", {}).get(key)
        return {"slot": replica.get("slot"), "tier": "failed", "why": why}
    return None

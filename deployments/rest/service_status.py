"""The service at one moment, from what its replicas say of themselves. Pure.

Counters are totals since the start of a replica's core: two of these, some time apart, give rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Values = Mapping[str, Any]

LISTED_LOADS = 20
PLACES = ("loading", "host", "device", "pinned")
COPIED = (
    "num_steps",
    "num_replayed",
    "num_running",
    "num_waiting",
    "num_warming",
    "num_adapters",
    "queue_s",
    "step_p50_s",
    "step_p99_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "num_preemptions",
    "num_evictions",
    "num_moves",
    "num_loads",
    "num_pages",
    "free_pages",
    "held_pages",
)
"""Of a replica's counters (`engine.core_stats.CoreStats`)."""


def service_status(replicas: Sequence[Values], at_s: float, max_tenants: int) -> dict[str, Any]:
    """at_s: Unix seconds. The busiest `max_tenants` by name, all others in `others`."""
    tenants = sorted(_tenants(replicas), key=_busiest_first)
    return {
        "object": "status",
        "at_s": at_s,
        "replicas": sorted((_replica(r) for r in replicas), key=lambda r: r["slot"]),
        "tenants": tenants[:max_tenants],
        "others": pooled(tenants[max_tenants:]),
    }


def pooled(tenants: Sequence[Values]) -> dict[str, Any]:
    """Of tenants that aren't shown by name."""
    sums = {n: sum(t[n] for t in tenants) for n in ("running", "waiting", "tokens")}
    return {"num_tenants": len(tenants), **sums}


def _replica(status: Values) -> dict[str, Any]:
    """stats: None before the core's first."""
    stats, residency = status.get("stats"), status.get("residency", {})
    device = status.get("device") or {}
    return {
        "slot": status["slot"],
        "ready": bool(status.get("ready")),
        "device": device.get("kind", ""),
        "max_rows": status.get("rows", 0),
        "epoch": _epoch(status),
        "adapters": {place: len(residency.get(place, ())) for place in PLACES},
        "loading": list(residency.get("loading", ()))[:LISTED_LOADS],
        "num_failed": len(status.get("failed", ())),
        "stats": stats and {name: stats[name] for name in COPIED},
        "stalls": status.get("stalls") or {},
        "arrivals": dict(stats["arrivals"]) if stats else {},
    }


def _epoch(status: Values) -> int:
    epoch: int = status.get("pids", {}).get("core", 0)
    return epoch


def _tenants(replicas: Iterable[Values]) -> list[dict[str, Any]]:
    """Summed over replicas; of the lags the largest. tokens_by: by the life of a core, for a
    replica tells of a tenant for some seconds after its last request alone."""
    found: dict[str, dict[str, Any]] = {}
    for status in replicas:
        life = f"{status['slot']}/{_epoch(status)}"
        for row in status.get("tenants", ()):
            known = found.setdefault(row["id"], {**dict.fromkeys(row, 0), "tokens_by": {}})
            found[row["id"]] = {
                "id": row["id"],
                "weight": max(known["weight"], row["weight"]),
                "lag": max(known["lag"], row["lag"]),
                **{n: known[n] + row[n] for n in ("running", "waiting", "tokens")},
                "tokens_by": {**known["tokens_by"], life: row["tokens"]},
            }
    return list(found.values())


def _busiest_first(tenant: Values) -> tuple[int, int, str]:
    return -(tenant["running"] + tenant["waiting"]), -tenant["tokens"], tenant["id"]

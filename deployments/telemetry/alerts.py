"""Prometheus alert rules for the service's objectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deployments.telemetry import instruments as i
from deployments.telemetry.panels import FAILED_STATUS, OF_TENANTS
from deployments.telemetry.queries import Queries

FIRST_TOKEN_S = 5.0
ERROR_SHARE = 0.02
HIT_RATE_FALL = 0.7
"""Of the rate of the hour before."""
MIN_HIT_RATE = 0.5
STALE_S = 30.0


@dataclass(frozen=True, slots=True)
class Alert:
    """since: how long `expr` must hold. severity: page or ticket. remedy: what to do."""

    name: str
    expr: str
    since: str
    severity: str
    summary: str
    remedy: str

    def to_rule(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.since,
            "labels": {"severity": self.severity, "service": "loraplex"},
            "annotations": {"summary": self.summary, "remedy": self.remedy},
        }


def alerts(prefix: str) -> tuple[Alert, ...]:
    return (*_objectives(prefix), *_adapters(prefix), *_parts(prefix))


def rules(prefix: str) -> dict[str, Any]:
    """A rule file, as Prometheus reads it; a PrometheusRule has it as its spec."""
    return {"groups": [{"name": "loraplex", "rules": [a.to_rule() for a in alerts(prefix)]}]}


def _objectives(prefix: str) -> tuple[Alert, ...]:
    q = Queries(prefix, "5m")
    return (
        Alert(
            "LoraplexFirstTokenSlow",
            f"{q.quantile(0.95, i.TENANT_FIRST_TOKEN)} > {FIRST_TOKEN_S:g}",
            "10m",
            "page",
            "One in twenty requests waits {{ $value | humanizeDuration }} for its first token.",
            "Queue `ready` grows: add replicas. Queue `warming` grows, or the hit rate falls:"
            " enlarge the hot set or warm up. One tenant alone: look at its quotas.",
        ),
        Alert(
            "LoraplexErrors",
            f"({q.share(i.REQUESTS, FAILED_STATUS, OF_TENANTS)}) > {ERROR_SHARE:g}",
            "5m",
            "page",
            "{{ $value | humanizePercentage }} of the requests fail.",
            "The codes on the tenant board say whether replicas, store or registry are at fault.",
        ),
        Alert(
            "LoraplexQueueGrows",
            f'deriv({q.name(i.QUEUE_REQUESTS)}{{state="ready"}}[15m]) > 0'
            f' and {q.name(i.QUEUE_REQUESTS)}{{state="ready"}} > 10'
            f" and on (process) {q.name(i.QUEUE_WAIT)} > {FIRST_TOKEN_S:g}",
            "15m",
            "ticket",
            "Requests that wait for room on {{ $labels.process }} have grown in number for half an"
            " hour.",
            "Add replicas (or raise max_replicas), or lower tenants' limits.",
        ),
    )


def _adapters(prefix: str) -> tuple[Alert, ...]:
    lately, before = Queries(prefix, "10m"), Queries(prefix, "1h")
    hits = 'tier="device"'

    def hit_rate(q: Queries, offset: str = "") -> str:
        name, spans = q.name(i.ARRIVALS), f"[{q.range}]{offset}"
        return f"sum(rate({name}{{{hits}}}{spans})) / (sum(rate({name}{spans})) > 0)"

    return (
        Alert(
            "LoraplexHitRateFalls",
            f"{hit_rate(lately)} < {HIT_RATE_FALL:g} * ({hit_rate(before, ' offset 10m')})"
            f" and {hit_rate(lately)} < {MIN_HIT_RATE:g}",
            "15m",
            "ticket",
            "Only {{ $value | humanizePercentage }} of the requests find their adapter on the"
            " device, far fewer than in the hour before.",
            "More adapters are in use than have room: enlarge the hot set (memory.arena_bytes,"
            " memory.host_bytes, pins) or run a warm-up job (`loraplex adapters prefetch`)."
            " More replicas don't help: each would load the same adapters again.",
        ),
        Alert(
            "LoraplexAdapterQuarantined",
            f"increase({lately.name(i.QUARANTINES)}[15m]) > 0",
            "0m",
            "ticket",
            "A replica refuses an adapter whose output was not finite, time and again.",
            "The answers' error names it: publish a version whose weights are sound.",
        ),
    )


def _parts(prefix: str) -> tuple[Alert, ...]:
    q = Queries(prefix, "10m")
    started = q.name(i.CORE_STARTED)
    return (
        Alert(
            "LoraplexCoreDied",
            f"sum(increase({q.name(i.LOSSES)}[10m])) > 0"
            f" or sum(increase({q.name(i.CORE_DEATHS)}[10m])) > 0",
            "0m",
            "page",
            "A core or a replica has died within ten minutes.",
            "Its log says why. An error of the GPU: look at the node. Memory: lower"
            " memory.utilisation or memory.host_bytes.",
        ),
        Alert(
            "LoraplexCoresRestart",
            f"count(count_over_time({started}[30m])) - count({started}) >= 3"
            f" and count({started} > time() - 600) > 0",
            "0m",
            "page",
            "{{ $value }} cores have gone within half an hour, and new ones begin.",
            "After a rollout this passes. Else the replicas' logs say why they end.",
        ),
        Alert(
            "LoraplexRegistryStale",
            f"max({q.name(i.REGISTRY_AGE)}) > {STALE_S:g}",
            "2m",
            "page",
            "An ingress has not reached the registry for {{ $value | humanizeDuration }}.",
            "Known names go on being served, revoked keys too; nothing can be published. Look at"
            " the registry, and at the network between.",
        ),
    )

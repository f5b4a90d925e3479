"""The dashboard of the adapters: hits, stalls, loads, and what lies where."""

from __future__ import annotations

from deployments.telemetry import instruments as i
from deployments.telemetry.panels import FAILED, Board, Panel, quantiles
from deployments.telemetry.queries import Queries, seldom

ADAPTER = 'adapter=~"$adapter"'
OF_ADAPTERS = 'use="adapters"'


def adapter_cache(q: Queries) -> Board:
    panels = (*_hits(q), *_tiers(q), *_by_adapter(q))
    return Board("adapter-cache", "loraplex / adapter cache", panels, (("adapter", i.REQUESTS),))


def _hits(q: Queries) -> tuple[Panel, ...]:
    return (
        Panel(
            "Adapter hit rate",
            "percentunit",
            (("on the device", q.share(i.ARRIVALS, 'tier="device"')),),
            "Falling: more adapters are in use than have room. Remedy: a larger hot set (arena,"
            " host memory, pins) or a warm-up job, not replicas.",
        ),
        Panel(
            "Where adapters were when requests came",
            "reqps",
            (("{{tier}}", q.rate(i.ARRIVALS, "tier")),),
        ),
        Panel(
            "Fetch stalls",
            "reqps",
            (("stalls", f"sum(rate({q.part(i.STALLS, 'count')}[{q.range}]))"),),
            "Requests that waited for their adapter and nothing else: the misses that cost time.",
        ),
        quantiles(q, "Length of fetch stalls", i.STALLS, (0.5, 0.95)),
        Panel(
            "Loads by what they were for",
            "short",
            (("{{source}} for a {{cause}}", q.rate(i.LOADS, "source, cause")),),
            "A second.",
        ),
        Panel(
            "Loads that failed",
            "short",
            (("{{source}} {{outcome}}", seldom(q.rate(i.LOADS, "source, outcome", FAILED))),),
            "A second.",
        ),
        Panel(
            "Time of a load, p95",
            "s",
            (("{{source}}", q.quantile(0.95, i.LOAD_DURATION, "source")),),
        ),
        quantiles(q, "Time of an upload", i.UPLOAD_DURATION, (0.5, 0.95)),
    )


def _tiers(q: Queries) -> tuple[Panel, ...]:
    return (
        Panel("Versions by place", "short", (("{{place}}", q.now(i.RESIDENTS, "place")),)),
        Panel("The arena", "bytes", (("{{use}}", q.now(i.ARENA, "use")),)),
        Panel(
            "Adapters in the arena",
            "short",
            (("{{process}}", q.now(i.ARENA_ADAPTERS, "process")),),
        ),
        Panel(
            "Lost to rounding, of the adapters' part",
            "percentunit",
            (
                (
                    "rounding",
                    f"{q.now(i.ROUNDING)} / ({q.now(i.ARENA, where=OF_ADAPTERS)} > 0) or vector(0)",
                ),
            ),
            "Adapters take whole pages.",
        ),
        Panel("Evictions", "short", (("{{kind}}", q.rate(i.EVICTIONS, "kind")),), "A second."),
        Panel("Moves", "short", (("moves", q.rate(i.MOVES)),), "A second."),
        Panel(
            "Adapters put into quarantine",
            "short",
            (("adapters", q.rate(i.QUARANTINES)),),
            "A second. Their answers were not finite: publish sound weights.",
        ),
    )


def _by_adapter(q: Queries) -> tuple[Panel, ...]:
    return (
        Panel("Requests", "reqps", (("{{adapter}}", q.rate(i.REQUESTS, "adapter", ADAPTER)),)),
        Panel(
            "Time to first token, p99",
            "s",
            (("{{adapter}}", q.quantile(0.99, i.ADAPTER_FIRST_TOKEN, "adapter", ADAPTER)),),
        ),
        Panel(
            "Queue time in the core, p99",
            "s",
            (("{{adapter}}", q.quantile(0.99, i.ADAPTER_QUEUE, "adapter", ADAPTER)),),
        ),
    )

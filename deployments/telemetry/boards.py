"""The dashboards: of the fleet, a tenant, the adapters, and the engine."""

from __future__ import annotations

from deployments.telemetry import instruments as i
from deployments.telemetry.cache_board import adapter_cache
from deployments.telemetry.fleet_board import fleet
from deployments.telemetry.instrument import Instrument
from deployments.telemetry.panels import Board, Panel, quantiles
from deployments.telemetry.queries import Queries, seldom

TENANT = 'tenant=~"$tenant"'


def boards(q: Queries) -> tuple[Board, ...]:
    return fleet(q), tenant(q), adapter_cache(q), engine(q)


def tenant(q: Queries) -> Board:
    def by(quantile: float, histogram: Instrument) -> tuple[str, str]:
        return f"{{{{tenant}}}} p{quantile:.0%}"[:-1], q.quantile(
            quantile, histogram, "tenant", TENANT
        )

    panels = (
        Panel("Requests", "reqps", (("{{tenant}}", q.rate(i.REQUESTS, "tenant", TENANT)),)),
        Panel(
            "Failures by code",
            "reqps",
            (
                (
                    "{{tenant}} {{code}}",
                    seldom(q.rate(i.REQUESTS, "tenant, code", f'{TENANT},code!="ok"')),
                ),
            ),
        ),
        Panel(
            "Time to first token",
            "s",
            (by(0.5, i.TENANT_FIRST_TOKEN), by(0.99, i.TENANT_FIRST_TOKEN)),
        ),
        Panel(
            "Queue time in the core",
            "s",
            (by(0.5, i.TENANT_QUEUE), by(0.99, i.TENANT_QUEUE)),
            "From arrival to a row: waiting for the adapter and for the tenant's turn.",
        ),
        *_used(q),
        Panel(
            "Not let in",
            "reqps",
            (("{{tenant}} {{code}}", seldom(q.rate(i.REFUSALS, "tenant, code", TENANT))),),
        ),
        Panel(
            "Lag between accounts",
            "short",
            (("{{process}}", q.now(i.ACCOUNT_LAG, "process")),),
            "Weighted tokens between the tenant served most and the one served least, of those that"
            " wait. It stays below what a few requests are worth.",
        ),
        Panel(
            "Time to first token of the least popular tenants, pooled",
            "s",
            tuple(
                (
                    f"p{quantile:.0%}"[:-1],
                    q.quantile(quantile, i.POPULARITY_FIRST_TOKEN, "", 'tenants="bottom_decile"'),
                )
                for quantile in (0.5, 0.99)
            ),
        ),
    )
    return Board("tenant", "loraplex / tenant", panels, (("tenant", i.REQUESTS),))


def _used(q: Queries) -> tuple[Panel, ...]:
    """What tenants use of the replicas."""
    return (
        Panel(
            "Tokens",
            "short",
            (("{{tenant}} {{type}}", q.rate(i.TOKENS, "tenant, type", TENANT)),),
            "A second.",
        ),
        Panel(
            "Device time",
            "percentunit",
            (("{{tenant}}", q.rate(i.TENANT_DEVICE, "tenant", TENANT)),),
            "Of one device, by what its steps computed for whom.",
        ),
        Panel(
            "Adapters loaded",
            "Bps",
            (("{{tenant}}", q.rate(i.TENANT_LOADED, "tenant", TENANT)),),
        ),
        Panel(
            "Adapters' room",
            "bytes",
            (("{{tenant}} {{tier}}", q.rate(i.TENANT_RESIDENT, "tenant, tier", TENANT)),),
            "Bytes that were held on average.",
        ),
    )


def engine(q: Queries) -> Board:
    panels = (
        Panel("Steps", "short", (("{{process}}", q.rate(i.STEPS, "process")),), "A second."),
        quantiles(q, "Time of a step", i.STEP_DURATION, (0.5, 0.99)),
        Panel(
            "Different adapters in a step",
            "short",
            (
                ("p50", q.quantile(0.5, i.STEP_ADAPTERS)),
                ("p95", q.quantile(0.95, i.STEP_ADAPTERS)),
                ("mean", q.mean(i.STEP_ADAPTERS)),
            ),
        ),
        Panel(
            "Share of steps replayed from a graph",
            "percentunit",
            (("replayed", q.share(i.STEPS, 'replayed="true"')),),
            "On a GPU near 1; 0 on other devices.",
        ),
        Panel(
            "What adapters add to a step",
            "percentunit",
            (
                (
                    "overhead",
                    f"{q.rate(i.STEP_BUSY)} / ({q.rate(i.STEP_BASE)} > 0) - 1 or vector(0)",
                ),
            ),
            "Over what the same step would take without, as measured at the start: on a GPU alone.",
        ),
        Panel("Tokens", "short", (("{{type}}", q.rate(i.CORE_TOKENS, "type")),), "A second."),
        Panel("Preemptions", "short", (("sequences", q.rate(i.PREEMPTIONS)),), "A second."),
        Panel("Sequences", "short", (("{{state}}", q.now(i.QUEUE_REQUESTS, "state")),)),
        Panel(
            "How long those that wait have waited",
            "s",
            (("{{process}}", q.now(i.QUEUE_WAIT, "process", how="max")),),
        ),
    )
    return Board("engine", "loraplex / engine", panels)

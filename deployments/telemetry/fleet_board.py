"""The dashboard of the whole service: what clients see, where requests go, what is broken."""

from __future__ import annotations

from deployments.telemetry import instruments as i
from deployments.telemetry.panels import FAILED, FAILED_STATUS, OF_TENANTS, Board, Panel, quantiles
from deployments.telemetry.queries import Queries, seldom

LEFT_OWNER = 'reason=~"resident|spill|least_loaded"'


def fleet(q: Queries) -> Board:
    return Board("fleet", "loraplex / fleet", (*_clients(q), *_placing(q), *_parts(q)))


def _clients(q: Queries) -> tuple[Panel, ...]:
    return (
        Panel("Requests by status", "reqps", (("{{status}}", q.rate(i.REQUESTS, "status")),)),
        Panel(
            "Share of requests that failed (5xx)",
            "percentunit",
            (("5xx", q.share(i.REQUESTS, FAILED_STATUS, OF_TENANTS)),),
            "Which errors: see the codes on the tenant board.",
        ),
        quantiles(q, "Time to first token", i.TENANT_FIRST_TOKEN, (0.5, 0.95, 0.99)),
        Panel(
            "Time to first token, p99: least popular tenants and the rest",
            "s",
            (("{{tenants}}", q.quantile(0.99, i.POPULARITY_FIRST_TOKEN, "tenants")),),
            "The tenth of the tenants with least traffic, pooled. Far above the rest: their"
            " adapters are cold when they come. Pin or warm up those that matter.",
        ),
        quantiles(q, "Request duration", i.REQUEST_DURATION, (0.5, 0.95)),
        quantiles(q, "Time between tokens", i.TOKEN_INTERVAL, (0.5, 0.95)),
        Panel("Tokens", "short", (("{{type}}", q.rate(i.TOKENS, "type")),), "A second."),
        Panel("Requests in progress", "short", (("ingresses", q.now(i.REQUESTS_ACTIVE)),)),
    )


def _placing(q: Queries) -> tuple[Panel, ...]:
    pick_s = f"{q.rate(i.PICK_TIME)} / {q.rate(i.PICKS)}"
    return (
        Panel(
            "Sequences in the replicas",
            "short",
            (("{{state}}", q.now(i.QUEUE_REQUESTS, "state")),),
            "ready wait for room, warming for their adapter. ready that grows: more replicas."
            " warming that grows: a larger hot set or a warm-up, not replicas.",
        ),
        Panel(
            "Placements by reason",
            "reqps",
            (("{{reason}}", q.rate(i.PLACEMENTS, "reason")),),
        ),
        Panel(
            "Share of requests away from their adapter's owner",
            "percentunit",
            (("spilled", q.share(i.PLACEMENTS, LEFT_OWNER)),),
            "Each to a replica without the adapter costs a load.",
        ),
        Panel(
            "Not let in",
            "reqps",
            (("{{code}}", seldom(q.rate(i.REFUSALS, "code"))),),
            "429 by what the tenant is at its limit of; overloaded: the ingress is full.",
        ),
        Panel(
            "Router: waiting and hints",
            "reqps",
            (("waited", q.rate(i.ROUTER_WAITS)), ("hints", q.rate(i.ROUTER_HINTS))),
        ),
        Panel("Time to place a request", "s", (("mean", pick_s),)),
    )


def _parts(q: Queries) -> tuple[Panel, ...]:
    started = q.name(i.CORE_STARTED)
    return (
        Panel("Cores", "short", (("serving", f"count({started})"),)),
        Panel("Youngest core", "s", (("age", f"time() - max({started})"),), "Since its start."),
        Panel(
            "Requests that lost their replica or its core",
            "reqps",
            (("{{code}}", q.rate(i.LOSSES, "code")),),
        ),
        Panel(
            "Cores that died",
            "short",
            (("an hour", f"3600 * {seldom(q.rate(i.CORE_DEATHS))}"),),
            "Under requests or none. Why: the replica's log.",
        ),
        Panel(
            "Canaries that the gate rolled back",
            "short",
            (("an hour", f"3600 * {seldom(q.rate(i.GATE_ROLLBACKS))}"),),
            "Which, and why: `loraplex adapters show`.",
        ),
        Panel("Loader restarts", "short", (("a second", q.rate(i.LOADER_RESTARTS)),)),
        Panel(
            "Age of the ingresses' copy of the registry",
            "s",
            (("oldest", q.now(i.REGISTRY_AGE, how="max")),),
            "Above some seconds: the registry can't be reached. Names go on being served; revoked"
            " keys too.",
        ),
        Panel(
            "Failures of registry and store",
            "short",
            (
                ("registry", q.rate(i.REGISTRY_ERRORS)),
                ("publish: {{outcome}}", seldom(q.rate(i.PUBLISHES, "outcome", FAILED))),
                ("sweep: {{outcome}}", seldom(q.rate(i.SWEEPS, "outcome", FAILED))),
                ("load: {{outcome}}", seldom(q.rate(i.LOADS, "outcome", FAILED))),
            ),
            "A second.",
        ),
    )

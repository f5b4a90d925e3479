"""What an ingress process knows beside its requests: its router and its copy of the registry."""

from __future__ import annotations

from collections.abc import Callable

from deployments.ingress.catalog import Catalog
from deployments.telemetry import instruments as i
from deployments.telemetry.metering import Metering
from router.counters import RouterCounters
from router.placement import Reason


def read_router(metering: Metering, counters: Callable[[], RouterCounters | None]) -> None:
    """Before every export. counters: None while there is no router yet."""

    def read() -> None:
        counts, put = counters(), metering.tally.set
        if counts is None:
            return
        for reason in Reason:
            put(i.PLACEMENTS, counts.placed.get(reason, 0), reason)
        put(i.ROUTER_WAITS, counts.waited)
        put(i.ROUTER_HINTS, counts.hints)
        put(i.PICKS, counts.num_picks)
        put(i.PICK_TIME, counts.pick_s)

    metering.readers.append(read)


def read_catalog(metering: Metering, catalog: Catalog) -> None:
    """Before every export."""

    def read() -> None:
        metering.tally.set(i.REGISTRY_ERRORS, catalog.num_failures)
        age_s = catalog.age_s
        if age_s is not None:
            metering.tally.set(i.REGISTRY_AGE, age_s)

    metering.readers.append(read)

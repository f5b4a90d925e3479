"""What replicas tell each other of the service that they gave: plain values, so that releases can
mix. One order a second carries the others' counters to a replica, and its answer its own.

    order   {"v": 1, "peers": [answer, ...]}
    answer  {"slot": rank, "epoch": a word, "served": {tenant: weighted tokens since the start}}

Every ingress may do so: counters only grow, so what is told twice counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InvalidRequest
from engine.messages import PeerService, ServiceElsewhere

SERVICE_VERSION = 1


class ServiceBook:
    """epoch: a word of this life of its core's alone."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._own: dict[str, float] = {}
        self._told: dict[int, tuple[str, dict[str, float]]] = {}

    def heard(self, service: Sequence[tuple[str, float]]) -> None:
        """From the core (`CoreStats.service`)."""
        self._own.update(service)

    def answer(self, slot: int) -> dict[str, Any]:
        return {"slot": slot, "epoch": self._epoch, "served": dict(self._own)}

    def read(self, order: Mapping[str, Any]) -> ServiceElsewhere:
        """What is new of the others, for the core: of each tenant whose counter has grown since it
        was last told, of all in a replica's first. Raises InvalidRequest for an order of another
        release, or one that can't be read."""
        if order.get("v") != SERVICE_VERSION:
            raise InvalidRequest(f"Service version {order.get('v')} is not {SERVICE_VERSION}.")
        try:
            peers = [self._news(peer) for peer in order["peers"] if peer["epoch"] != self._epoch]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequest(f"The order can't be read: {error!r}.") from None
        return ServiceElsewhere(tuple(peers))

    def _news(self, peer: Mapping[str, Any]) -> PeerService:
        slot, epoch = int(peer["slot"]), str(peer["epoch"])
        known = self._told.get(slot)
        if known is None or known[0] != epoch:
            known = self._told[slot] = (epoch, {})
        told = known[1]
        served = {str(t): float(c) for t, c in peer["served"].items()}
        news = tuple((t, c) for t, c in served.items() if c > told.get(t, -1.0))
        told.update(news)
        return PeerService(str(slot), epoch, news)

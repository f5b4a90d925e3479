"""What other replicas have served the tenants, counted into this one's accounts.

Replicas tell each other monotonic counters of weighted tokens served, never account values: a
message lost is made good by the next. Where none comes, accounts are local. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from engine.account import Account
from engine.accounts import Accounts
from engine.messages import PeerService


class ServiceExchange:
    """local_floor: see `AccountConfig`."""

    def __init__(self, accounts: Accounts, local_floor: float) -> None:
        self._accounts = accounts
        self._local_floor = local_floor
        self._changes: dict[str, float] = {}
        self._window = 0.0  # weighted tokens served here since the last exchange
        self._seen: dict[str, tuple[str, dict[str, float]]] = {}

    def take_changes(self) -> tuple[tuple[str, float], ...]:
        """Own counters that have grown since the last call: (tenant, weighted tokens served since
        this core's start)."""
        self._count()
        changes, self._changes = self._changes, {}
        return tuple(changes.items())

    def receive(self, peers: Iterable[PeerService]) -> None:
        """What others have served since they were last heard of. Of a replica never heard of, or
        begun anew, the first message is where counting begins."""
        self._count()
        served: dict[str, float] = {}
        for peer in peers:
            for tenant, amount in self._growth(peer):
                served[tenant] = served.get(tenant, 0.0) + amount
        window, self._window = self._window, 0.0
        behind = [a for a in self._accounts.with_work() if a.num_waiting]
        for account, amount in zip(behind, self._counted(behind, served, window), strict=True):
            if amount:
                self._accounts.served_elsewhere(account.tenant, amount)

    def _count(self) -> None:
        for account in self._accounts.take_touched():
            served = account.served
            self._window += served - account.told
            account.told = served
            self._changes[account.tenant] = served

    def _growth(self, peer: PeerService) -> Iterable[tuple[str, float]]:
        epoch, before = self._seen.get(peer.replica, ("", {}))
        if epoch != peer.epoch:
            self._seen[peer.replica] = (peer.epoch, dict(peer.served))
            return
        for tenant, counter in peer.served:
            growth = counter - before.get(tenant, 0.0)
            before[tenant] = counter
            if growth > 0:  # else the peer had forgotten the tenant and begun again
                yield tenant, growth

    def _counted(
        self, accounts: Sequence[Account], served: Mapping[str, float], window: float
    ) -> list[float]:
        weights = [account.weight for account in accounts]
        remote = [served.get(a.tenant, 0.0) / a.weight for a in accounts]
        most = most_counted(remote, weights, window, self._local_floor)
        return [min(amount, most) for amount in remote]


def most_counted(
    remote: Sequence[float], weights: Sequence[float], window: float, local_floor: float
) -> float:
    """How much of others' service may count for a tenant, in weighted tokens over its weight, so
    that each of these backlogged tenants keeps `local_floor` of its local share.

    remote: by tenant, what others served it over its weight. window: weighted tokens served here
    meanwhile. Where accounts grow alike, a tenant's own service falls behind its share by what is
    counted for it less the weighted mean of what is counted for all: that is (1 - local_floor) of
    the share at most. The largest level with that, above which everything is cut off.
    """
    total = sum(weights)
    allowed = (1.0 - local_floor) * window
    beneath = total  # the weight of those that aren't cut off, and what is counted for them
    counted = sum(r * w for r, w in zip(remote, weights, strict=True))
    level = inf
    for amount, weight in sorted(zip(remote, weights, strict=True), reverse=True):
        if amount * beneath <= allowed + counted or beneath - weight <= 0:
            break
        beneath -= weight
        counted -= amount * weight
        level = (allowed + counted) / beneath
    return level

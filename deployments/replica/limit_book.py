"""What a replica has been told of tenants' limits. Pure.

Every ingress tells what its own copy of the registry says, and again until all have heard it. One
that has lost the registry meanwhile must not undo what another has told since: the revisions of the
tenants' records say whose word is newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.orders.tier_orders import read_limits
from engine.messages import SetLimits


class LimitBook:
    def __init__(self) -> None:
        self._revs: dict[str, int] = {}

    def read(self, order: Mapping[str, Any]) -> SetLimits:
        """Of an order those that aren't older than what is known here. Raises InvalidRequest for
        one that can't be read."""
        told = read_limits(order)
        newest = [one for one in told if one.rev >= self._revs.get(one.tenant.id, one.rev)]
        self._revs |= {one.tenant.id: one.rev for one in newest}
        return SetLimits(tuple(one.tenant for one in newest))

"""Word sent ahead to a replica that an adapter's requests will overflow to. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

PAUSE_S = 5.0
MAX_KEPT = 10_000


class SpillHints:
    """Not the same hint again within `pause_s`."""

    def __init__(self, *, pause_s: float = PAUSE_S, max_kept: int = MAX_KEPT) -> None:
        self._pause_s = pause_s
        self._max_kept = max_kept
        self._sent_s: OrderedDict[tuple[str, str], float] = OrderedDict()

    def due(self, replica: str, ref_key: str, now: float) -> bool:
        """Whether to send it, which counts as sent."""
        key = (replica, ref_key)
        sent_s = self._sent_s.get(key)
        if sent_s is not None and now - sent_s < self._pause_s:
            return False
        self._sent_s[key] = now
        self._sent_s.move_to_end(key)
        if len(self._sent_s) > self._max_kept:
            self._sent_s.popitem(last=False)
        return True


def prefetch_order(args: Sequence[Any]) -> dict[str, Any] | None:
    """The order (`deployments.orders.tier_orders`) to prefetch what a call to `generate` with these
    arguments asks for; None for any other call, and for the base."""
    call = args[0] if len(args) == 1 else None
    requests = call.get("requests") if isinstance(call, Mapping) else None
    if not requests or requests[0].get("adapter") is None:
        return None
    return {
        "v": 1,
        "ref": requests[0]["adapter"],
        "to_device": True,
        "ordered": False,
        "tenant": requests[0]["tenant"],
        "slots": None,
    }

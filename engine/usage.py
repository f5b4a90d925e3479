"""What each tenant has used of a replica: plain counters that only grow. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

MAX_IDLE_TOLD = 256
"""Tenants whose adapters lie here and who ask for nothing, told of at once."""


class TenantUsage(NamedTuple):
    """One tenant's counters since the start of the core.

    num_requests   that got a row
    prompt_tokens  of those; cached_tokens of them came from the prefix cache
    device_s       seconds of steps: a row pays its tokens beyond the first at what a token more
                   costs, and all rows of a step an equal part of the rest
    queue_s        how long they waited for a row, all together
    loaded_bytes   of its adapters, each time one came into host memory
    host_byte_s, device_byte_s  its adapters' bytes times the seconds that they had room there
    """

    tenant: str
    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_s: float = 0.0
    queue_s: float = 0.0
    loaded_bytes: int = 0
    host_byte_s: float = 0.0
    device_byte_s: float = 0.0


@dataclass(slots=True, eq=False)
class Usage:
    """What its sequences add up; fields as in `TenantUsage`."""

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_s: float = 0.0
    queue_s: float = 0.0
    loaded_bytes: int = 0


class ByteSeconds:
    """The bytes that each tenant holds of a tier, times how long it holds them."""

    def __init__(self) -> None:
        self._now = 0.0
        self._held: dict[str, tuple[int, float]] = {}  # bytes, since when
        self._past: dict[str, float] = {}
        self._left: set[str] = set()

    def pass_time(self, now: float) -> None:
        """What follows happens at `now` (seconds, monotonic)."""
        self._now = now

    def add(self, tenant: str, num_bytes: int) -> None:
        """The tenant holds so many more, or less."""
        held, since = self._held.get(tenant, (0, self._now))
        self._past[tenant] = self._past.get(tenant, 0.0) + held * (self._now - since)
        if held + num_bytes:
            self._held[tenant] = (held + num_bytes, self._now)
        elif self._held.pop(tenant, None) is not None:
            self._left.add(tenant)

    def of(self, tenant: str) -> float:
        held, since = self._held.get(tenant, (0, 0.0))
        return self._past.get(tenant, 0.0) + held * (self._now - since)

    def take_left(self) -> set[str]:
        """Who has come to hold nothing since the last call: nothing will be added to what they
        have held, until they hold something again."""
        left, self._left = self._left, set()
        return left

    def holders(self) -> Iterator[str]:
        return iter(self._held)


class UsageBook:
    """host, device: the bytes of adapters in either tier."""

    def __init__(self, host: ByteSeconds, device: ByteSeconds) -> None:
        self._host = host
        self._device = device
        self._usage: dict[str, Usage] = {}
        self._touched: set[str] = set()
        self._waiting: list[str] = []

    def of(self, tenant: str) -> Usage:
        """To be added to; it is told of with the next changes."""
        self._touched.add(tenant)
        usage = self._usage.get(tenant)
        if usage is None:
            usage = self._usage[tenant] = Usage()
        return usage

    def take_changes(self, running: Iterable[str]) -> tuple[TenantUsage, ...]:
        """Of tenants that have used something since the last call, `running` among them. Those of
        whom merely adapters lie here take turns, so that thousands cost no step more than a few.
        """
        left = self._host.take_left() | self._device.take_left()
        touched, self._touched = self._touched.union(running, left), set()
        if not self._waiting:
            self._waiting = list({*self._host.holders(), *self._device.holders()})
        touched.update(self._waiting[-MAX_IDLE_TOLD:])
        del self._waiting[-MAX_IDLE_TOLD:]
        return tuple(self._told(tenant) for tenant in touched)

    def all(self) -> tuple[TenantUsage, ...]:
        """Of every tenant that has ever used anything."""
        known = {*self._usage, *self._host.holders(), *self._device.holders()}
        return tuple(self._told(tenant) for tenant in sorted(known))

    def _told(self, tenant: str) -> TenantUsage:
        u = self._usage.get(tenant) or Usage()
        return TenantUsage(
            tenant,
            u.num_requests,
            u.prompt_tokens,
            u.cached_tokens,
            u.output_tokens,
            u.device_s,
            u.queue_s,
            u.loaded_bytes,
            self._host.of(tenant),
            self._device.of(tenant),
        )

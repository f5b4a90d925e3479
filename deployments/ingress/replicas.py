"""The replicas, as an ingress sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from deployments.rest.answers import Event
from engine.types import AdapterRef, Tenant


class ReplicaStream(Protocol):
    """Batches of events of one call. Iteration raises the errors of `engine.errors`."""

    def __aiter__(self) -> AsyncIterator[list[Event]]: ...

    def cancel(self) -> None:
        """Stop the call at the replica. May be repeated, also after its end."""


class Replicas(Protocol):
    def generate(
        self, call: Mapping[str, Any], *, ring_key: str, adapter_key: str
    ) -> ReplicaStream: ...

    async def drop(self, refs: Sequence[AdapterRef], now: bool, timeout_s: float) -> None:
        """Tell every replica that these versions are retired. now: what runs on them ends at once,
        with an error. Raises Unavailable where some that live can't be told in time."""
        ...

    def hint(self, ref: AdapterRef, tenant: Tenant) -> None:
        """A request for this version comes in a moment: its replica may bring it nearer. Nobody
        waits for that."""
        ...

    async def tell(
        self, method: str, order: Mapping[str, Any], timeout_s: float
    ) -> list[Mapping[str, Any]]:
        """Tell every replica the same (`tier_orders`). What those say that answer with a mapping.
        Raises Unavailable when none answers in time."""
        ...

    async def tell_all(self, method: str, order: Mapping[str, Any], timeout_s: float) -> bool:
        """Tell every replica the same; whether each that lives has heard it in time."""
        ...

    async def statuses(self, timeout_s: float) -> list[Mapping[str, Any]]:
        """What each replica says of itself. Raises Unavailable when none answers in time."""
        ...

    async def activity(self, timeout_s: float) -> list[Mapping[str, Any]]:
        """Likewise, with the tenants that each is busy for."""
        ...

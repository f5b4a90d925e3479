"""Who waits: tenant -> adapter -> FIFO. Standard library only.

A FIFO is *open* while its requests could be admitted: the base's always, an adapter's as long as
the adapter is on the device and admission to it isn't closed. So a warming adapter holds up its own
requests alone, and looking for the next request costs nothing for those that can't go.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.sequence import Sequence
from engine.turns import Ages, Entries

Key = str | None
Fifo = OrderedDict[str, Sequence]


class WaitingQueue:
    def __init__(self) -> None:
        self._fifos: dict[str, dict[Key, Fifo]] = {}
        self._open: set[Key] = {None}
        self._tenants_of: dict[Key, set[str]] = {}
        self._ready: dict[str, set[Key]] = {}
        self._ages = Ages()
        self._num_waiting = 0
        self._arrivals_s = 0.0  # summed over those that wait
        self._num_of: dict[Key, int] = {}
        self._tokens_of: dict[Key, int] = {}
        self._ready_tokens = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, sequence: Sequence) -> None:
        """At the end of its FIFO."""
        fifo = self._fifo(sequence)
        fifo[sequence.id] = sequence
        self._count(sequence, 1)
        if len(fifo) == 1:
            self._reorder(sequence.tenant)

    def push_front(self, sequence: Sequence) -> None:
        """At the head: a preempted sequence keeps its turn. Of several, the older goes first."""
        fifo = self._fifo(sequence)
        fifo[sequence.id] = sequence
        fifo.move_to_end(sequence.id, last=False)
        self._count(sequence, 1)
        self._reorder(sequence.tenant)

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError where it does not wait."""
        tenant, key = sequence.tenant, sequence.adapter_key
        fifo = self._fifos[tenant][key]
        del fifo[sequence.id]
        self._count(sequence, -1)
        if not fifo:
            self._forget(tenant, key)
        self._reorder(tenant)

    def set_open(self, key: str, is_open: bool) -> None:
        """Whether requests for this adapter can be admitted."""
        if is_open == (key in self._open):
            return
        num_tokens = self._tokens_of.get(key, 0)
        if is_open:
            self._open.add(key)
            self._ready_tokens += num_tokens
        else:
            self._open.discard(key)
            self._ready_tokens -= num_tokens
        for tenant in self._tenants_of.get(key, ()):
            self._mark(tenant, key)
            self._reorder(tenant)

    def ready_tenants(self) -> dict[str, set[Key]]:
        """Tenants with a request that could be admitted, and the adapters of such (read only)."""
        return self._ready

    def head(self, tenant: str) -> Sequence | None:
        """The tenant's next request: the oldest head among its open FIFOs."""
        keys = self._ready.get(tenant)
        if not keys:
            return None
        fifos = self._fifos[tenant]
        return min((next(iter(fifos[key].values())) for key in keys), key=_age)

    def by_age(self) -> Entries:
        """The tenants with a `head`, by its order; the caller's own."""
        return self._ages.ascending()

    @property
    def ready_tokens(self) -> int:
        """Tokens of the requests that could be admitted."""
        return self._ready_tokens

    def waiting_for(self, key: str) -> list[Sequence]:
        """Every request that waits for this adapter, oldest first."""
        tenants = self._tenants_of.get(key, ())
        return sorted((s for t in tenants for s in self._fifos[t][key].values()), key=_age)

    @property
    def num_warming(self) -> int:
        """Requests whose adapter isn't open."""
        return self._num_waiting - sum(self._num_of.get(key, 0) for key in self._open)

    def mean_wait_s(self, now: float) -> float:
        """How long those that wait have waited, on average; 0 where nobody does."""
        return now - self._arrivals_s / self._num_waiting if self._num_waiting else 0.0

    def check(self) -> None:
        count: dict[Key, int] = {}
        tokens: dict[Key, int] = {}
        for tenant, fifos in self._fifos.items():
            assert fifos, f"{tenant} waits for nothing"
            for key, fifo in fifos.items():
                assert fifo, f"an empty FIFO of {tenant}"
                assert tenant in self._tenants_of[key]
                assert (key in self._ready.get(tenant, ())) == (key in self._open)
                count[key] = count.get(key, 0) + len(fifo)
                known = sum(len(sequence.tokens) for sequence in fifo.values())
                tokens[key] = tokens.get(key, 0) + known
                ages = [sequence.order for sequence in fifo.values()]
                assert ages == sorted(ages), "a FIFO out of order"
                for sequence in fifo.values():
                    assert sequence.row == -1 and not sequence.pages and not sequence.nodes
                    assert sequence.lease is None and not sequence.finished
        assert count == self._num_of
        assert tokens == self._tokens_of
        assert self._ready_tokens == sum(tokens.get(key, 0) for key in self._open)
        assert sum(count.values()) == self._num_waiting
        self._ages.check({t: h.order for t in self._ready if (h := self.head(t)) is not None})
        assert all(self._ready.values())
        assert set(self._ready) <= set(self._fifos)
        assert {k for k, t in self._tenants_of.items() if t} == set(count)

    def _fifo(self, sequence: Sequence) -> Fifo:
        tenant, key = sequence.tenant, sequence.adapter_key
        fifos = self._fifos.setdefault(tenant, {})
        fifo = fifos.get(key)
        if fifo is None:
            fifo = fifos[key] = OrderedDict()
            self._tenants_of.setdefault(key, set()).add(tenant)
            self._mark(tenant, key)
        return fifo

    def _mark(self, tenant: str, key: Key) -> None:
        if key in self._open:
            self._ready.setdefault(tenant, set()).add(key)
        elif tenant in self._ready:
            self._ready[tenant].discard(key)
            if not self._ready[tenant]:
                del self._ready[tenant]

    def _reorder(self, tenant: str) -> None:
        """Its head may be another."""
        head = self.head(tenant)
        self._ages.put(tenant, None if head is None else head.order)

    def _forget(self, tenant: str, key: Key) -> None:
        fifos = self._fifos[tenant]
        del fifos[key]
        if not fifos:
            del self._fifos[tenant]
        ready = self._ready.get(tenant)
        if ready is not None:
            ready.discard(key)
            if not ready:
                del self._ready[tenant]
        tenants = self._tenants_of[key]
        tenants.discard(tenant)
        if not tenants:
            del self._tenants_of[key]

    def _count(self, sequence: Sequence, change: int) -> None:
        key = sequence.adapter_key
        self._num_waiting += change
        # Exactly 0 when empty, so that rounding never adds up.
        self._arrivals_s += change * sequence.arrival_s if self._num_waiting else -self._arrivals_s
        left = self._num_of.get(key, 0) + change
        num_tokens = change * len(sequence.tokens)
        if key in self._open:
            self._ready_tokens += num_tokens
        if left:
            self._num_of[key] = left
            self._tokens_of[key] = self._tokens_of.get(key, 0) + num_tokens
        else:
            del self._num_of[key], self._tokens_of[key]


def _age(sequence: Sequence) -> int:
    return sequence.order

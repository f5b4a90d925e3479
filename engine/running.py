"""Who runs: the sequences that hold a row, by age and by tenant. Standard library only."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator

from engine.sequence import Sequence


class RunningSet:
    """max_rows: rows of a pass. Lower rows are given out first, so that batches stay dense."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._free_rows = list(range(max_rows))
        self._by_age: list[Sequence] = []
        self._by_tenant: dict[str, list[Sequence]] = {}
        self._several: dict[str, list[Sequence]] = {}
        self._num_pages: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[Sequence]:
        """Oldest first."""
        return iter(self._by_age)

    def tenants(self) -> Iterable[str]:
        return self._by_tenant.keys()

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def num_pages(self) -> int:
        """Pages that its sequences hold; one that several share counts for each."""
        return sum(self._num_pages.values())

    @property
    def oldest(self) -> Sequence | None:
        return self._by_age[0] if self._by_age else None

    @property
    def newest(self) -> Sequence | None:
        return self._by_age[-1] if self._by_age else None

    def several(self) -> Iterable[tuple[str, list[Sequence]]]:
        """The sequences of each tenant with more than one, oldest first (read only)."""
        return self._several.items()

    def add(self, sequence: Sequence) -> None:
        """Gives it a row. Its pages must be set. Raises IndexError where no row is free."""
        sequence.row = heapq.heappop(self._free_rows)
        insort(self._by_age, sequence, key=_age)
        mine = self._by_tenant.setdefault(sequence.tenant, [])
        insort(mine, sequence, key=_age)
        if len(mine) == 2:
            self._several[sequence.tenant] = mine
        self._count(sequence.tenant, len(sequence.pages))

    def remove(self, sequence: Sequence) -> None:
        """Takes its row back. Its pages must still be set."""
        heapq.heappush(self._free_rows, sequence.row)
        sequence.row = -1
        self._by_age.remove(sequence)
        mine = self._by_tenant[sequence.tenant]
        mine.remove(sequence)
        if len(mine) == 1:
            del self._several[sequence.tenant]
        self._count(sequence.tenant, -len(sequence.pages))
        if not mine:
            del self._by_tenant[sequence.tenant]
            del self._num_pages[sequence.tenant]

    def grew(self, sequence: Sequence, num_pages: int) -> None:
        """It was given that many pages more."""
        self._count(sequence.tenant, num_pages)

    def of(self, tenant: str) -> list[Sequence]:
        """The tenant's, oldest first (read only)."""
        return self._by_tenant.get(tenant, [])

    def num_rows_of(self, tenant: str) -> int:
        return len(self._by_tenant.get(tenant, ()))

    def num_pages_of(self, tenant: str) -> int:
        """Pages that its sequences refer to; one shared by two of them counts twice."""
        return self._num_pages.get(tenant, 0)

    def check(self) -> None:
        rows = [s.row for s in self._by_age]
        assert sorted(rows + self._free_rows) == list(range(self.max_rows))
        ages = [s.order for s in self._by_age]
        assert ages == sorted(set(ages))
        for tenant, mine in self._by_tenant.items():
            assert mine == [s for s in self._by_age if s.tenant == tenant]
            assert self._num_pages[tenant] == sum(len(s.pages) for s in mine)
        assert sum(len(m) for m in self._by_tenant.values()) == len(self._by_age)
        assert set(self._num_pages) == set(self._by_tenant)
        assert self._several == {t: m for t, m in self._by_tenant.items() if len(m) > 1}
        for s in self._by_age:
            assert not s.finished and s.pages
            assert (s.lease is None) == (s.request.adapter is None)
            assert 0 <= s.num_computed <= s.length and s.num_pending >= 0
            assert s.is_done_launching or s.num_remaining >= 1

    def _count(self, tenant: str, change: int) -> None:
        self._num_pages[tenant] = self._num_pages.get(tenant, 0) + change


def _age(sequence: Sequence) -> int:
    return sequence.order

"""Bookkeeping of the one device buffer that KV pages and adapters share.

No tensors; standard library only.

The buffer is cut into pages, numbered by physical position. KV takes single pages from the low end;
an adapter takes one contiguous run of pages from the high end. Others hold *page ids* and *adapter
indices*; two tables here turn them into positions, so that any page and any run can move.

A claim for an adapter speaks for its pages at once; if they don't lie side by side, `plan_moves`
brings that about over the next steps, oldest claim first. The life of an adapter:

    claim(bytes) -> index   pages spoken for
    uploadable(index)       polled: contiguous, and no launched plan touches the place any more
    begin_upload(index)     -> start page for the copy stream; from here it can't move
    end_upload(index)       the copy is complete: usable; from here it may move between steps
    release(index, plan)    evicted, or its load given up

What is freed may be used again by the compute stream at once, since that runs plans in order. The
copy stream is not ordered with it: it may write only where every plan that may touch the place,
move-carrying ones included, has finished (`settle`).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from engine.errors import AdapterRejected
from engine.moves import Compactor, MoveStep, Run, Stage
from engine.pages import NO_PLAN, RUN, PageMap
from engine.plan import Move


class Arena:
    """Positions 0 .. num_pages - 1; position 0 is reserved (padding rows write there).

    kv_reserve_pages   pages of one longest sequence: adapters, claimed ones included, never take
                       more than the rest. So whatever is resident, a sequence that is alone with
                       them can be finished: KV in use + free >= reserve, always
    page_bytes         size of a page
    max_move_bytes     moved in one step at most; a larger single page or run moves alone
    """

    def __init__(
        self, num_pages: int, kv_reserve_pages: int, page_bytes: int, max_move_bytes: int
    ) -> None:
        """Raises ValueError where the reserve does not fit."""
        if not 0 <= kv_reserve_pages < num_pages:
            raise ValueError(
                f"an arena of {num_pages} pages, one of them reserved for padding, can't hold"
                f" the {kv_reserve_pages} pages of one longest sequence"
            )
        self.num_pages = num_pages
        self.page_bytes = page_bytes
        self.kv_reserve_pages = kv_reserve_pages
        self.max_adapter_pages = num_pages - 1 - kv_reserve_pages
        self._max_step_pages = max_move_bytes // page_bytes
        self._map = PageMap(num_pages)
        self._positions = [0] * num_pages  # by page id; 0 where the id is free
        self._free_ids = list(range(num_pages - 1, 0, -1))
        self._runs: dict[int, Run] = {}
        self._placed: list[Run] = []  # ascending by start
        self._claims: deque[Run] = deque()  # oldest first, not placed yet
        self._free_indices: list[int] = []
        self._compactor = Compactor(self._map, self._positions, self._placed)
        self._moved: tuple[int, ...] = ()
        self._adapter_pages = 0
        self._claimed_pages = 0
        self._finished = NO_PLAN

    # What there is

    @property
    def num_free(self) -> int:
        """Pages free and not spoken for by a claim."""
        return self._map.num_unused - self._claimed_pages

    @property
    def num_kv_pages(self) -> int:
        return self.num_pages - 1 - len(self._free_ids)

    @property
    def num_adapters(self) -> int:
        """Adapters resident, on their way in or claimed."""
        return len(self._runs)

    @property
    def adapter_pages(self) -> int:
        """Pages of adapters, claimed ones included: `max_adapter_pages` at most."""
        return self._adapter_pages

    @property
    def rounding_bytes(self) -> int:
        """Bytes of adapters' pages that hold nothing since runs are whole pages."""
        used = sum(run.num_bytes for run in self._runs.values())
        return self._adapter_pages * self.page_bytes - used

    def pages_for(self, num_bytes: int) -> int:
        """Pages that an adapter of `num_bytes` takes, at least one."""
        return max(1, -(-num_bytes // self.page_bytes))

    # KV pages

    def allocate(self, num_pages: int) -> list[int] | None:
        """Page ids of that many KV pages, or None (and nothing taken) where fewer are free."""
        if num_pages > self.num_free:
            return None
        page_ids = [self._free_ids.pop() for _ in range(num_pages)]
        for page_id in page_ids:
            self._positions[page_id] = self._map.put_page(page_id)
        return page_ids

    def free(self, page_ids: Iterable[int], plan_id: int) -> None:
        """Give pages back. `plan_id`: the last launched plan that may use them (NO_PLAN: none did).

        Raises ValueError for a page id that is not in use.
        """
        for page_id in page_ids:
            position = self._positions[page_id]
            if position == 0:
                raise ValueError(f"page {page_id} is not in use")
            self._positions[page_id] = 0
            self._free_ids.append(page_id)
            self._map.drop_page(position, plan_id)

    def position(self, page_id: int) -> int:
        """Where the page lies, from the next plan on. Read it after `plan_moves`."""
        return self._positions[page_id]

    def positions(self, page_ids: Sequence[int]) -> list[int]:
        table = self._positions
        return [table[page_id] for page_id in page_ids]

    # Adapters

    def claim(self, num_bytes: int) -> int | None:
        """Adapter index of a new run for `num_bytes`; None where too few pages are free, or where
        adapters would reach into the KV reserve (see `adapter_pages`).

        Raises AdapterRejected for one that could never be resident.
        """
        num_pages = self.pages_for(num_bytes)
        if num_pages > self.max_adapter_pages:
            raise AdapterRejected(
                f"the adapter takes {num_pages * self.page_bytes} bytes on the device and adapters"
                f" have {self.max_adapter_pages * self.page_bytes} there: use a lower rank or fewer"
                " modules, or a larger arena",
                code="adapter_too_large",
            )
        if num_pages > self.num_free or self._adapter_pages + num_pages > self.max_adapter_pages:
            return None
        index = heappop(self._free_indices) if self._free_indices else len(self._runs)
        run = self._runs[index] = Run(index, num_pages, num_bytes)
        self._adapter_pages += num_pages
        self._claimed_pages += num_pages
        start = None if self._claims else self._map.find_window(num_pages)
        if start is None:
            self._claims.append(run)
        else:
            self._place(run, start)
        return index

    def uploadable(self, adapter: int) -> bool:
        """Whether the copy stream may write the run now."""
        run = self._runs[adapter]
        return (
            run.stage is Stage.PLACED and self._map.last_plan(run.start, run.end) <= self._finished
        )

    def begin_upload(self, adapter: int) -> int:
        """Start page to upload to. The run stays there until `end_upload`.

        Raises ValueError where it is not uploadable.
        """
        if not self.uploadable(adapter):
            raise ValueError(f"adapter {adapter} can't be uploaded to now")
        run = self._runs[adapter]
        self._compactor.forget(run)
        run.stage = Stage.UPLOADING
        return run.start

    def end_upload(self, adapter: int) -> None:
        """The upload's event has completed: plans made from now on may use the adapter."""
        run = self._runs[adapter]
        if run.stage is not Stage.UPLOADING:
            raise ValueError(f"adapter {adapter} has no upload in flight")
        run.stage = Stage.RESIDENT

    def start_page(self, adapter: int) -> int:
        """Physical page where the run starts, from the next plan on. Read it after `plan_moves`.

        Raises ValueError while its place is not made.
        """
        run = self._runs[adapter]
        if run.stage is Stage.CLAIMED:
            raise ValueError(f"adapter {adapter} has no place yet")
        return run.start

    def release(self, adapter: int, plan_id: int) -> None:
        """Give the run back, in any stage but with an upload in flight (ValueError). `plan_id`: the
        last launched plan that may use it. The index may be given to another adapter at once."""
        run = self._runs[adapter]
        if run.stage is Stage.UPLOADING:
            raise ValueError(f"adapter {adapter} has an upload in flight")
        if run.stage is Stage.CLAIMED:
            if run is self._claims[0]:
                self._compactor.give_up()
            self._claims.remove(run)
            self._claimed_pages -= run.num_pages
        else:
            self._compactor.forget(run)
            self._placed.remove(run)
            self._map.drop_run(run.start, run.num_pages, plan_id)
        del self._runs[adapter]
        heappush(self._free_indices, adapter)
        self._adapter_pages -= run.num_pages

    # Steps

    def plan_moves(self, plan_id: int) -> tuple[Move, ...]:
        """The moves that plan `plan_id`, the very next one, has to carry; () mostly.

        The tables already say where things lie after them. The caller launches that plan even if
        nothing else is in it, with a table entry for each of `moved_adapters`. At most
        `max_move_bytes`, unless one larger run moves alone; as much as that allows as long as a
        claim has no place and no upload in flight is in the way.
        """
        step = MoveStep(plan_id, self._max_step_pages)
        while self._claims:
            start = self._compactor.make_room(self._claims[0].num_pages, step)
            if start is None:
                break
            self._place(self._claims.popleft(), start)
        self._moved = tuple(dict.fromkeys(step.adapters))
        return tuple(step.moves)

    def moved_adapters(self) -> tuple[int, ...]:
        """Resident adapters that the moves just planned have moved."""
        return self._moved

    def settle(self, finished_plan_id: int) -> None:
        """All plans up to this one have finished on the device."""
        self._finished = max(self._finished, finished_plan_id)

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        self._map.check()
        in_use = {i: p for i, p in enumerate(self._positions) if p}
        assert all(self._map.page_at[p] == i for i, p in in_use.items())
        assert len(in_use) == self.num_kv_pages == len(set(in_use.values()))
        assert not set(in_use) & set(self._free_ids)
        assert self._placed == sorted(self._placed, key=lambda run: run.start)
        assert all(a.end <= b.start for a, b in pairwise(self._placed))
        for run in self._placed:
            assert self._map.use.count(RUN, run.start, run.end) == run.num_pages
        assert self._map.use.count(RUN) == sum(run.num_pages for run in self._placed)
        waiting = set(self._runs) - {run.adapter for run in self._placed}
        assert waiting == {run.adapter for run in self._claims}
        assert all((r.stage is Stage.CLAIMED) == (i in waiting) for i, r in self._runs.items())
        assert self._claimed_pages == sum(run.num_pages for run in self._claims)
        assert self._adapter_pages == sum(run.num_pages for run in self._runs.values())
        assert self._adapter_pages <= self.max_adapter_pages
        assert self.num_free >= 0 and self.num_kv_pages + self.num_free >= self.kv_reserve_pages
        assert self._map.fence is None or self._claims, "a fence without a claim"
        assert not set(self._free_indices) & set(self._runs)
        assert set(self._free_indices) | set(self._runs) == set(
            range(len(self._free_indices) + len(self._runs))
        )

    def _place(self, run: Run, start: int) -> None:
        run.start = start
        run.stage = Stage.PLACED
        self._map.put_run(start, run.num_pages)
        self._claimed_pages -= run.num_pages
        insort(self._placed, run, key=lambda other: other.start)

"""What lies at each physical position of the arena. Bookkeeping only; standard library only."""

from __future__ import annotations

RESERVED_POSITION = 0
NO_PLAN = -1
NO_PAGE = -1

FREE, KV, RUN, FENCED, RESERVED = range(5)
_FENCE = bytes(FENCED if use == FREE else use for use in range(256))
_UNFENCE = bytes(FREE if use == FENCED else use for use in range(256))


class PageMap:
    """One byte a position says what it holds: nothing, a KV page, part of an adapter's run, or
    nothing but fenced (a window being cleared for a run: no new page goes there).

    `last_plan` of a position is the last plan whose moves or pass may touch what lay there; the
    copy stream waits for it, the compute stream need not. Searches are single calls of the
    interpreter's own byte search: 50,000 positions take microseconds.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.use = bytearray(num_pages)
        self.use[RESERVED_POSITION] = RESERVED
        self.page_at = [NO_PAGE] * num_pages
        self.fence: tuple[int, int] | None = None
        self.num_unused = num_pages - 1
        self._last_plan = [NO_PLAN] * num_pages
        self._lowest = 1  # nothing is free below it

    def put_page(self, page_id: int) -> int:
        """Give the page the lowest free position. Raises IndexError where nothing is free."""
        position = self.use.find(FREE, self._lowest)
        if position < 0:
            raise IndexError("no free position")
        self._lowest = position + 1
        self.use[position] = KV
        self.page_at[position] = page_id
        self.num_unused -= 1
        return position

    def drop_page(self, position: int, plan_id: int) -> None:
        """The page at `position` is no more; plans up to `plan_id` may still use it."""
        lo, hi = self.fence or (0, 0)
        self.use[position] = FENCED if lo <= position < hi else FREE
        self.page_at[position] = NO_PAGE
        self.num_unused += 1
        self._lowest = min(self._lowest, position)
        self.touch(position, position + 1, plan_id)

    def move_page(self, source: int, plan_id: int) -> int:
        """Move the page at `source` to the lowest free position, in plan `plan_id`."""
        target = self.put_page(self.page_at[source])
        self.drop_page(source, plan_id)
        self.touch(target, target + 1, plan_id)
        return target

    def find_window(self, num_pages: int) -> int | None:
        """Start of the highest free window of `num_pages`, fenced positions excluded."""
        start = self.use.rfind(bytes(num_pages), self._lowest)
        return None if start < 0 else start

    def put_run(self, start: int, num_pages: int) -> None:
        """A run takes a window of unused positions, fenced ones included."""
        self.use[start : start + num_pages] = bytes([RUN]) * num_pages
        self.num_unused -= num_pages

    def drop_run(self, start: int, num_pages: int, plan_id: int) -> None:
        """The run is no more; plans up to `plan_id` may still use it."""
        self.use[start : start + num_pages] = bytes(num_pages)
        self.num_unused += num_pages
        self._lowest = min(self._lowest, start)
        self.touch(start, start + num_pages, plan_id)

    def slide_run(self, start: int, num_pages: int, shift: int) -> None:
        """The run moves up by `shift` into the fenced, cleared positions just above it."""
        self.lift_fence()
        self.use[start : start + shift] = bytes(shift)
        self.use[start + shift : start + shift + num_pages] = bytes([RUN]) * num_pages
        self._lowest = min(self._lowest, start)

    def raise_fence(self, lo: int, hi: int) -> None:
        """Keep new pages out of positions lo .. hi - 1. There is one fence at most."""
        self.fence = (lo, hi)
        self.use[lo:hi] = self.use[lo:hi].translate(_FENCE)

    def lift_fence(self) -> None:
        if self.fence is not None:
            lo, hi = self.fence
            self.use[lo:hi] = self.use[lo:hi].translate(_UNFENCE)
            self._lowest = min(self._lowest, lo)
            self.fence = None

    def touch(self, lo: int, hi: int, plan_id: int) -> None:
        """Plan `plan_id` may touch positions lo .. hi - 1."""
        last = self._last_plan
        last[lo:hi] = [max(plan, plan_id) for plan in last[lo:hi]]

    def last_plan(self, lo: int, hi: int) -> int:
        """The last plan that may touch any of the positions lo .. hi - 1."""
        return max(self._last_plan[lo:hi])

    def check(self) -> None:
        """Raise AssertionError where the map contradicts itself."""
        use = self.use
        assert use[RESERVED_POSITION] == RESERVED and use.count(RESERVED) == 1
        assert self.num_unused == use.count(FREE) + use.count(FENCED)
        assert use.find(FREE, 0, self._lowest) < 0
        lo, hi = self.fence or (0, 0)
        assert use.count(FENCED) == use.count(FENCED, lo, hi), "a fenced position outside the fence"
        assert use.count(FREE, lo, hi) == 0, "a free position inside the fence"
        for position, page_id in enumerate(self.page_at):
            assert (use[position] == KV) == (page_id != NO_PAGE)

"""Making a contiguous place for an adapter by moving KV pages and other adapters.

Standard library only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from engine.pages import KV, PageMap
from engine.plan import Move

MAX_WINDOWS = 1024


class Stage(IntEnum):
    """CLAIMED: its pages are spoken for, its place is not made yet. PLACED: contiguous, nothing in
    it. UPLOADING: the copy stream writes it; it can't move. RESIDENT: usable."""

    CLAIMED = 0
    PLACED = 1
    UPLOADING = 2
    RESIDENT = 3


@dataclass(slots=True, eq=False)
class Run:
    """One adapter's pages. `start` means nothing while CLAIMED."""

    adapter: int
    num_pages: int
    num_bytes: int
    start: int = 0
    stage: Stage = Stage.CLAIMED

    @property
    def end(self) -> int:
        return self.start + self.num_pages

    @property
    def pages_to_copy(self) -> int:
        """What moving it costs: nothing as long as nothing is in it."""
        return self.num_pages if self.stage is Stage.RESIDENT else 0


@dataclass(slots=True)
class MoveStep:
    """The moves of one plan. `pages_left` of its budget; the first move may exceed it, alone."""

    plan_id: int
    pages_left: int
    moves: list[Move] = field(default_factory=list)
    adapters: list[int] = field(default_factory=list)

    def affords(self, num_pages: int) -> bool:
        return num_pages <= self.pages_left or not self.moves

    def add(self, move: Move, *, joinable: bool) -> None:
        """Single pages that lie side by side at both ends become one move."""
        self.pages_left -= move.num_pages
        if joinable and self.moves:
            last = self.moves[-1]
            end = (last.source + last.num_pages, last.target + last.num_pages)
            if end == (move.source, move.target):
                self.moves[-1] = Move(last.source, last.target, last.num_pages + 1)
                return
        self.moves.append(move)


class Compactor:
    """Makes room for one claim at a time.

    A window without runs is fenced (no new page goes there) and its KV pages are moved to free
    positions outside; pages spoken for are free somewhere, so this always works out. Where no
    gap between runs is long enough, the runs between the fewest bytes' worth of gaps slide up,
    topmost first, each into a fenced and cleared stretch just above it, until one gap is. Runs only
    ever slide up and a fence only ever empties, so it ends. Runs with an upload in flight don't
    move: windows lie between them, and where they leave none it waits.
    """

    def __init__(self, pages: PageMap, positions: list[int], runs: list[Run]) -> None:
        """positions: page id -> position. runs: the placed ones, ascending by start. Both belong
        to the arena and are kept up to date here as things move."""
        self._map = pages
        self._positions = positions
        self._runs = runs
        self._slides: deque[tuple[Run, int]] = deque()  # the fence is for the first of them

    def make_room(self, num_pages: int, step: MoveStep) -> int | None:
        """Start of a window that is free after `step`'s moves, or None: not in this step."""
        while (start := self._map.find_window(num_pages)) is None:
            if self._map.fence is None and not self._choose(num_pages):
                return None
            if not self._clear(step):
                return None
            if not self._slides:
                start = self._fence()[0]
                break
            if not self._slide(step):
                return None
        self.give_up()
        return start

    def give_up(self) -> None:
        """Forget what was begun. What has moved stays where it is."""
        self._slides.clear()
        self._map.lift_fence()

    def forget(self, run: Run) -> None:
        """The run is going, or can't move any more: choose again if it was to slide."""
        if any(run is other for other, _ in self._slides):
            self.give_up()

    def _fence(self) -> tuple[int, int]:
        assert self._map.fence is not None
        return self._map.fence

    def _choose(self, num_pages: int) -> bool:
        gaps = gaps_between(self._runs, self._map.num_pages)
        start = cheapest_window(self._map.use, gaps, num_pages)
        if start is not None:
            self._map.raise_fence(start, start + num_pages)
            return True
        self._slides.extend(cheapest_slides(self._map.use, self._runs, gaps, num_pages))
        return self._fence_next()

    def _fence_next(self) -> bool:
        if not self._slides:
            return False
        run, shift = self._slides[0]
        self._map.raise_fence(run.end, run.end + shift)
        return True

    def _clear(self, step: MoveStep) -> bool:
        """Move KV pages out of the fence. False: the step's budget is spent first."""
        lo, hi = self._fence()
        source = self._map.use.find(KV, lo, hi)
        while source >= 0:
            if not step.affords(1):
                return False
            page_id = self._map.page_at[source]
            target = self._map.move_page(source, step.plan_id)
            self._positions[page_id] = target
            step.add(Move(source, target, 1), joinable=True)
            source = self._map.use.find(KV, source + 1, hi)
        return True

    def _slide(self, step: MoveStep) -> bool:
        """Slide the first run into its cleared stretch. False: not in this step."""
        run, shift = self._slides[0]
        if not step.affords(run.pages_to_copy):
            return False
        self._slides.popleft()
        self._map.slide_run(run.start, run.num_pages, shift)
        if run.pages_to_copy:
            step.add(Move(run.start, run.start + shift, run.num_pages), joinable=False)
            step.adapters.append(run.adapter)
            self._map.touch(run.start, run.end + shift, step.plan_id)
        run.start += shift
        self._fence_next()
        return True


def gaps_between(runs: Sequence[Run], num_pages: int) -> list[tuple[int, int]]:
    """The stretches without runs, empty ones too: gap i below run i, the last one above all."""
    starts = [1, *(run.end for run in runs)]
    ends = [*(run.start for run in runs), num_pages]
    return list(zip(starts, ends, strict=True))


def cheapest_window(use: bytearray, gaps: Sequence[tuple[int, int]], num_pages: int) -> int | None:
    """Start of the window inside one gap that holds the fewest KV pages, the highest of equals.

    In a large arena it looks at `MAX_WINDOWS` of them, evenly spaced, and every gap's topmost.
    """
    num_windows = sum(max(0, hi - lo - num_pages + 1) for lo, hi in gaps)
    stride = max(1, num_windows // MAX_WINDOWS)
    best, best_count = None, num_pages + 1
    for lo, hi in reversed(gaps):
        for start in range(hi - num_pages, lo - 1, -stride):
            count = use.count(KV, start, start + num_pages)
            if count < best_count:
                best, best_count = start, count
    return best


def cheapest_slides(
    use: bytearray, runs: Sequence[Run], gaps: Sequence[tuple[int, int]], num_pages: int
) -> list[tuple[Run, int]]:
    """Which runs to slide up, by how many pages, topmost first, so that a gap of `num_pages` opens
    below them. Fewest pages copied; [] where runs that can't move leave no room. No gap is as long
    as that yet.

    Two pointers over the gaps: gaps low .. high are joined below the runs between them; those but
    the lowest have to be cleared of KV pages.
    """
    costs = [
        run.pages_to_copy + use.count(KV, *gap) for run, gap in zip(runs, gaps[1:], strict=True)
    ]
    best: tuple[int, int, int] | None = None
    best_cost = low = room = cost = 0
    for high, (lo, hi) in enumerate(gaps):
        if high and runs[high - 1].stage is Stage.UPLOADING:
            low, room, cost = high, 0, 0
        elif high:
            cost += costs[high - 1]
        room += hi - lo
        while low < high and room - (gaps[low][1] - gaps[low][0]) >= num_pages:
            room -= gaps[low][1] - gaps[low][0]
            cost -= costs[low]
            low += 1
        if room >= num_pages and (best is None or cost < best_cost):
            best, best_cost = (low, high, room), cost
    if best is None:
        return []
    low, high, room = best
    end = gaps[high][1]
    page = use.find(KV, end - (room - num_pages), end)
    top = end if page < 0 else page  # no page has to leave for more shift than is needed
    slides = []
    for run in reversed(runs[low:high]):
        slides.append((run, top - run.end))
        top -= run.num_pages
    return slides

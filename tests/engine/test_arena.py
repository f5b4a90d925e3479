"""The arena against an independent model: logical contents, and a device that runs plans late."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.arena import Arena
from engine.errors import AdapterRejected
from engine.pages import NO_PLAN
from engine.plan import Move

PAGE_BYTES = 10


@dataclass
class Adapter:
    """What the model knows of one adapter. data: the contents of its pages."""

    num_pages: int
    data: list[int]
    stage: str = "claimed"
    start: int = 0
    last_plan: int = NO_PLAN


@dataclass
class Plan:
    """Launched: reads and writes by position, with the values that must be there."""

    id: int
    moves: tuple[Move, ...]
    reads: dict[int, int] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)

    def touched(self) -> set[int]:
        moved = {p for m in self.moves for p in span(m.source, m.num_pages)}
        moved |= {p for m in self.moves for p in span(m.target, m.num_pages)}
        return moved | set(self.reads) | set(self.writes)


def span(start: int, num_pages: int) -> range:
    return range(start, start + num_pages)


class ArenaMachine(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(8, 48),
        reserve=st.integers(0, 6),
        budget=st.integers(0, 9),
        depth=st.sampled_from([0, 1]),
        pick=st.randoms(use_true_random=False),
    )
    def begin(
        self, num_pages: int, reserve: int, budget: int, depth: int, pick: random.Random
    ) -> None:
        self.arena = Arena(num_pages, reserve, PAGE_BYTES, budget * PAGE_BYTES)
        self.usable = num_pages - 1
        self.reserve, self.budget, self.depth = reserve, budget, depth
        self.memory = [0] * num_pages
        self.in_flight: deque[Plan] = deque()
        self.plan_id = 0
        self.fresh = 0
        self.pages: dict[int, int | None] = {}  # page id -> content, None: never written
        self.page_last_plan: dict[int, int] = {}
        self.sequences: list[list[int]] = []
        self.adapters: dict[int, Adapter] = {}
        self.churn(pick)

    def churn(self, pick: random.Random) -> None:
        """Begin with an arena that was full and has holes now, so that claims have to wait."""
        for _ in range(pick.randint(2, 10)):
            self.adapter_is_wanted(pick.randint(1, 6), 0)
            self.step(pick)
            self.uploads_begin(early=True)
            if self.has("uploading") and pick.random() < 0.8:
                self.upload_ends(pick)
        for _ in range(pick.randint(self.num_free() // 2, self.num_free())):
            self.sequence_arrives(1)
        self.step(pick)
        ending = pick.choice([0.1, 0.3, 0.6])
        for _ in range(len(self.sequences)):
            if pick.random() < ending:
                self.sequence_ends(pick)
        for _ in range(len(self.adapters)):
            if pick.random() < 0.4 and self.has("claimed", "resident"):
                self.adapter_is_evicted(pick)

    # What the model expects

    def num_free(self) -> int:
        return self.usable - len(self.pages) - self.adapter_pages()

    def adapter_pages(self) -> int:
        return sum(a.num_pages for a in self.adapters.values())

    def new_content(self) -> int:
        self.fresh += 1
        return self.fresh

    def has(self, *stages: str) -> list[int]:
        return sorted(i for i, a in self.adapters.items() if a.stage in stages)

    # KV

    @rule(num_pages=st.integers(0, 5))
    def sequence_arrives(self, num_pages: int) -> None:
        page_ids = self.arena.allocate(num_pages)
        assert (page_ids is not None) == (num_pages <= self.num_free())
        if page_ids is None:
            return
        assert len(set(page_ids)) == num_pages and not set(page_ids) & set(self.pages)
        self.pages.update(dict.fromkeys(page_ids))
        self.page_last_plan.update(dict.fromkeys(page_ids, NO_PLAN))
        self.sequences.append(page_ids)

    @precondition(lambda self: self.sequences)
    @rule(pick=st.randoms(use_true_random=False))
    def sequence_ends(self, pick: random.Random) -> None:
        page_ids = self.sequences.pop(pick.randrange(len(self.sequences)))
        last = max((self.page_last_plan[p] for p in page_ids), default=NO_PLAN)
        self.arena.free(page_ids, last)
        for page_id in page_ids:
            del self.pages[page_id], self.page_last_plan[page_id]

    # Adapters

    @rule(left=st.integers(0, 3))
    def adapter_that_hardly_fits_is_wanted(self, left: int) -> None:
        room = min(self.num_free(), self.usable - self.reserve - self.adapter_pages())
        self.adapter_is_wanted(max(1, room - left), 0)

    @rule(num_pages=st.integers(1, 40), short=st.integers(0, PAGE_BYTES - 1))
    def adapter_is_wanted(self, num_pages: int, short: int) -> None:
        num_bytes = num_pages * PAGE_BYTES - short
        if num_pages > self.usable - self.reserve:
            with pytest.raises(AdapterRejected, match=str((self.usable - self.reserve) * 10)):
                self.arena.claim(num_bytes)
            return
        fits = num_pages <= self.num_free()
        fits = fits and self.adapter_pages() + num_pages <= self.usable - self.reserve
        rounding = self.arena.rounding_bytes
        index = self.arena.claim(num_bytes)
        assert (index is not None) == fits
        if index is not None:
            assert index not in self.adapters and index <= len(self.adapters)
            assert self.arena.rounding_bytes == rounding + short
            self.adapters[index] = Adapter(
                num_pages, [self.new_content() for _ in range(num_pages)]
            )

    @rule(early=st.booleans(), pick=st.randoms(use_true_random=False))
    def memory_changes_hands(self, early: bool, pick: random.Random) -> None:
        """All at once, between two steps: the copy stream is as quick as it may be."""
        self.step(pick)
        for _ in range(pick.randrange(len(self.sequences) + 1)):
            self.sequence_ends(pick)
        if self.has("claimed", "resident") and pick.random() < 0.5:
            self.adapter_is_evicted(pick)
        self.adapter_that_hardly_fits_is_wanted(pick.randrange(4))
        self.uploads_begin(early)
        if pick.random() < 0.5:
            self.step(pick)
            self.uploads_begin(early)

    @precondition(lambda self: self.has("claimed"))
    @rule(early=st.booleans())
    def uploads_begin(self, early: bool) -> None:
        """early: the copy stream writes at once; otherwise at the end. Both must be safe."""
        for index in self.has("claimed"):
            if self.arena.uploadable(index):
                adapter = self.adapters[index]
                adapter.start = self.arena.begin_upload(index)
                adapter.stage = "uploading"
                place = set(span(adapter.start, adapter.num_pages))
                assert not any(place & plan.touched() for plan in self.in_flight)
                if early:
                    self.memory[adapter.start : adapter.start + adapter.num_pages] = adapter.data

    @precondition(lambda self: self.has("uploading"))
    @rule(pick=st.randoms(use_true_random=False))
    def upload_ends(self, pick: random.Random) -> None:
        self.finish_upload(pick.choice(self.has("uploading")))

    def finish_upload(self, index: int) -> None:
        adapter = self.adapters[index]
        self.memory[adapter.start : adapter.start + adapter.num_pages] = adapter.data
        assert self.arena.start_page(index) == adapter.start
        self.arena.end_upload(index)
        adapter.stage = "resident"

    @precondition(lambda self: self.has("claimed", "resident"))
    @rule(pick=st.randoms(use_true_random=False))
    def adapter_is_evicted(self, pick: random.Random) -> None:
        index = pick.choice(self.has("claimed", "resident"))
        self.arena.release(index, self.adapters.pop(index).last_plan)

    # Steps

    @rule(pick=st.randoms(use_true_random=False))
    def step(self, pick: random.Random) -> None:
        self.launch(pick)
        while len(self.in_flight) > self.depth:
            self.finish_plan()

    @precondition(lambda self: self.in_flight)
    @rule()
    def device_catches_up(self) -> None:
        self.finish_plan()

    @precondition(lambda self: not self.has("uploading"))
    @rule(pick=st.randoms(use_true_random=False))
    def moves_run_to_their_end(self, pick: random.Random) -> None:
        """Nothing else happens: every claim gets its place, for a bounded amount of copying."""
        unplaced = [i for i in self.has("claimed") if not self.is_placed(i)]
        resident = sum(self.adapters[i].num_pages for i in self.has("resident"))
        bound = sum(2 * self.adapters[i].num_pages + resident for i in unplaced)
        num_moved = 0
        while not all(self.is_placed(i) for i in unplaced):
            num_moved += self.launch(pick)
            assert num_moved <= bound
            while len(self.in_flight) > self.depth:
                self.finish_plan()
        while self.in_flight:
            self.finish_plan()
        assert all(self.arena.uploadable(i) for i in self.has("claimed"))

    def is_placed(self, index: int) -> bool:
        try:
            return self.arena.start_page(index) > 0
        except ValueError:
            return False

    def launch(self, pick: random.Random) -> int:
        """Plan, launch, and answer how many pages move."""
        self.plan_id += 1
        before = {i: self.arena.start_page(i) for i in self.has("resident")}
        moves = self.arena.plan_moves(self.plan_id)
        self.check_moves(moves)
        moved = [i for i, start in before.items() if self.arena.start_page(i) != start]
        assert sorted(moved) == sorted(self.arena.moved_adapters())
        plan = Plan(self.plan_id, moves)
        used = pick.choice([0.1, 0.6])
        for page_id, content in self.pages.items():
            position = self.arena.position(page_id)
            if content is not None and pick.random() < used:
                plan.reads[position] = content
                self.page_last_plan[page_id] = self.plan_id
            if pick.random() < used / 2:
                self.pages[page_id] = plan.writes[position] = self.new_content()
                self.page_last_plan[page_id] = self.plan_id
        for index in self.has("resident"):
            adapter = self.adapters[index]
            if pick.random() < used:
                start = self.arena.start_page(index)
                plan.reads.update(zip(span(start, adapter.num_pages), adapter.data, strict=True))
                adapter.last_plan = self.plan_id
        for index in self.has("uploading"):
            adapter = self.adapters[index]
            assert not plan.touched() & set(span(adapter.start, adapter.num_pages))
        assert 0 not in plan.touched()
        self.in_flight.append(plan)
        return sum(move.num_pages for move in moves)

    def check_moves(self, moves: tuple[Move, ...]) -> None:
        num_moved = sum(move.num_pages for move in moves)
        assert num_moved <= max(self.budget, 1) or len(moves) == 1
        if not self.has("uploading") and not all(map(self.is_placed, self.has("claimed"))):
            runs = [self.adapters[i].num_pages for i in self.has("resident")]
            assert num_moved, "a claim waits and nothing moves"
            assert self.budget - num_moved < max(runs, default=1), (
                "a claim waits and moves would fit"
            )

    def finish_plan(self) -> None:
        """The device runs the oldest plan, as late as it can: moves, then the pass."""
        plan = self.in_flight.popleft()
        for move in plan.moves:
            pages = self.memory[move.source : move.source + move.num_pages]
            self.memory[move.target : move.target + move.num_pages] = pages
        for position, content in plan.reads.items():
            assert self.memory[position] == content, "a page lost its content"
        for position, content in plan.writes.items():
            self.memory[position] = content
        self.arena.settle(plan.id)

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "arena"):
            self.arena.check()
            assert self.arena.num_free == self.num_free()
            assert self.arena.adapter_pages == self.adapter_pages()
            assert self.arena.num_kv_pages == len(self.pages)

    def teardown(self) -> None:
        """With the uploads over, every claim that was granted is served, and no content is lost."""
        if not hasattr(self, "arena"):
            return
        pick = random.Random(0)
        for index in self.has("uploading"):
            self.finish_upload(index)
        self.moves_run_to_their_end(pick)
        self.uploads_begin(early=True)
        for index in self.has("uploading"):
            self.finish_upload(index)
        assert not self.has("claimed")
        for page_id, content in self.pages.items():
            assert content is None or self.memory[self.arena.position(page_id)] == content
        for index, adapter in self.adapters.items():
            start = self.arena.start_page(index)
            assert self.memory[start : start + adapter.num_pages] == adapter.data


TestArenaMachine = ArenaMachine.TestCase
TestArenaMachine.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

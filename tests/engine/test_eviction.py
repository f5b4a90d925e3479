"""GreedyDual-Size against a plain model, and its special case LRU."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.eviction import GreedyDualSize

KEYS = st.integers(0, 7)
KINDS = st.sampled_from(["adapter", "prefix"])


def is_odd(key: int) -> bool:
    return key % 2 == 1


def evict_all(cache: GreedyDualSize[str]) -> list[str]:
    cache.check()
    return [key for key in iter(cache.pop, None) if key is not None]


def test_cheap_and_large_things_go_first() -> None:
    cache = GreedyDualSize[str]()
    cache.touch("cheap", cost_s=0.1, num_pages=10, kind="adapter")
    cache.touch("dear", cost_s=1.0, num_pages=10, kind="adapter")
    cache.touch("large", cost_s=1.0, num_pages=1000, kind="adapter")
    cache.touch("page", cost_s=0.02, num_pages=1, kind="prefix")
    assert evict_all(cache) == ["large", "cheap", "page", "dear"]


def test_the_clock_ages_what_is_not_used() -> None:
    cache = GreedyDualSize[str]()
    cache.touch("dear", cost_s=3.5, num_pages=1, kind="adapter")
    for turn in range(3):
        cache.touch(f"cheap {turn}", cost_s=1.0, num_pages=1, kind="adapter")
        assert cache.pop() == f"cheap {turn}" and cache.clock == turn + 1
    cache.touch("cheap", cost_s=1.0, num_pages=1, kind="adapter")
    assert evict_all(cache) == ["dear", "cheap"]


def test_what_is_held_stays_and_keeps_its_turn() -> None:
    cache = GreedyDualSize[str]()
    for key in "abc":
        cache.touch(key, cost_s=1.0, num_pages=1, kind="adapter")
    cache.hold("a")
    cache.hold("b")
    cache.touch("b", cost_s=1.0, num_pages=1, kind="adapter")
    assert cache.pop() == "c" and cache.pop() is None
    cache.let_go("b")
    cache.let_go("a")
    cache.let_go("a")
    cache.check()
    assert "a" in cache and len(cache) == 2
    assert evict_all(cache) == ["a", "b"]


def test_pop_can_be_narrowed_to_a_kind_and_by_a_test() -> None:
    cache = GreedyDualSize[str]()
    for cost_s, key in enumerate(["p", "a", "b"], 1):
        cache.touch(key, cost_s, num_pages=1, kind="prefix" if key == "p" else "adapter")
    assert cache.pop(kinds=["adapter"], allow=lambda key: key != "a") == "b"
    assert cache.pop(kinds=["model"]) is None
    cache.check()
    assert evict_all(cache) == ["p", "a"]


def test_equal_costs_and_sizes_make_it_lru() -> None:
    @settings(max_examples=200)
    @given(st.lists(st.tuples(st.sampled_from(["touch", "pop"]), KEYS, KINDS), max_size=60))
    def run(ops: list[tuple[str, int, str]]) -> None:
        cache = GreedyDualSize[int]()
        lru: OrderedDict[int, None] = OrderedDict()
        for op, key, kind in ops:
            if op == "touch":
                cache.touch(key, cost_s=0.7, num_pages=3, kind=kind)
                lru[key] = None
                lru.move_to_end(key)
            else:
                assert cache.pop() == (lru.popitem(last=False)[0] if lru else None)
            cache.check()

    run()


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["touch", "touch", "hold", "let_go", "remove", "pop", "pop odd"]),
            KEYS,
            st.integers(0, 4),
            st.integers(1, 4),
            KINDS,
        ),
        max_size=80,
    )
)
def test_it_evicts_what_the_definition_says(
    ops: list[tuple[str, int, int, int, str]],
) -> None:
    cache = GreedyDualSize[int]()
    model: dict[int, tuple[float, int]] = {}  # key -> H, time of use
    held: set[int] = set()
    clock = 0.0
    for now, (op, key, cost_s, num_pages, kind) in enumerate(ops):
        if op == "touch":
            cache.touch(key, cost_s, num_pages, kind)
            model[key] = (clock + cost_s / num_pages, now)
        elif op in ("pop", "pop odd"):
            odd = op == "pop odd"
            free = {k: v for k, v in model.items() if k not in held and (k % 2 or not odd)}
            expected = min(free, key=lambda k: free[k], default=None)
            assert cache.pop(allow=is_odd if odd else None) == expected
            if expected is not None:
                clock = max(clock, model.pop(expected)[0])
        elif key in model:
            getattr(cache, op)(key)
            if op == "hold":
                held.add(key)
            else:
                held.discard(key)
            if op == "remove":
                del model[key]
        cache.check()
        assert len(cache) == len(model) and cache.clock == clock


def test_uses_without_evictions_take_no_more_memory() -> None:
    """The heap holds outdated items; a hundred thousand uses of ten keys leave a few."""
    cache = GreedyDualSize[int]()
    for turn in range(100_000):
        cache.touch(turn % 10, cost_s=1.0, num_pages=1, kind="adapter")
    assert sum(map(len, cache._heaps.values())) < 100

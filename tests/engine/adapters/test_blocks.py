"""Which blocks leave host memory, against looking at every one of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.blocks import Blocks, is_droppable
from engine.adapters.version import State, Tier, Version
from tests.support.world import adapter

TENANTS = ("t", "u", "v")
STATES = (State.HOST, State.CLAIMED, State.DEVICE)


def version(number: int, load_s: float) -> Version:
    ref = adapter(f"a{number}", 1 + number % 3, TENANTS[number % len(TENANTS)])
    num_bytes = ref.num_elements * 4
    found = Version(ref, num_bytes, 1, ref.tenant, state=State.HOST, load_s=load_s)
    found.host_offset = number * 4096
    return found


class Plain:
    """The same, by looking at all of them each time."""

    def __init__(self) -> None:
        self.worth: dict[Version, float] = {}
        self.clock = 0.0

    def used(self, version: Version) -> None:
        self.worth[version] = self.clock + version.load_s / version.num_bytes

    def cheapest(self, first: set[str]) -> float | None:
        may_go = [v for v in self.worth if is_droppable(v)]
        own = [v for v in may_go if v.ref.tenant in first]
        return min((self.worth[v] for v in own or may_go), default=None)


events = st.tuples(
    st.sampled_from(("use", "ask", "pin", "move", "order", "go", "remove")),
    st.integers(0, 9),
    st.integers(0, 3),
)


@given(st.lists(events, max_size=120), st.sets(st.sampled_from(TENANTS), max_size=2))
def test_the_cheapest_that_may_go(steps: list[tuple[str, int, int]], first: set[str]) -> None:
    blocks, plain = Blocks(), Plain()
    versions: dict[int, Version] = {}
    for what, number, value in steps:
        if what == "use" or number not in versions:
            found = versions.setdefault(number, version(number, 0.1 + value))
            for side in (blocks, plain):
                side.used(found)
            continue
        found = versions[number]
        match what:
            case "ask":
                found.num_waiting = value % 2
            case "pin":
                found.pin = (Tier.COLD, Tier.HOST, Tier.DEVICE)[value % 3]
            case "move":
                found.state = STATES[value % 3]
            case "order":
                found.is_ordered = bool(value % 2)
            case "go":
                wanted = plain.cheapest(first)
                found = blocks.cheapest(first)
                assert (found and plain.worth[found]) == wanted
                if found is not None:
                    blocks.age_to(found)
                    plain.clock = max(plain.clock, plain.worth[found])
                    take_out(found, blocks, plain, versions)
            case "remove":
                take_out(found, blocks, plain, versions)
        if found is not None:
            blocks.refresh(found)
        blocks.check()


def take_out(found: Version, blocks: Blocks, plain: Plain, versions: dict[int, Version]) -> None:
    blocks.remove(found)
    del plain.worth[found]
    versions.pop(next(n for n, v in versions.items() if v is found))


def test_used_again_and_again_it_keeps_one_place() -> None:
    blocks = Blocks()
    found = version(0, 1.0)
    for _ in range(1000):
        blocks.used(found)
    blocks.check()
    assert blocks.cheapest(set()) is found
    blocks.remove(found)
    assert blocks.cheapest(set()) is None

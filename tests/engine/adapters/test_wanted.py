"""Whose load comes next, against a look at all that are wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.accounts import Accounts
from engine.adapters.host import HostPool
from engine.adapters.loading import LOOK_AGAIN_S, Loading
from engine.adapters.quotas import Quotas
from engine.adapters.version import State, Version
from engine.adapters.wanted import Wanted
from engine.config import AccountConfig
from engine.prices import prices_of
from engine.types import Tenant
from tests.support.world import adapter

NAMES = "abcd"
TENANTS = "xyz"
BLOCK = 4096


def version(name: str, tenant: str = "t", order: int = 0, num_waiting: int = 1) -> Version:
    made = Version(adapter(name, 1, tenant), BLOCK, 1, tenant)
    made.order, made.num_waiting = order, num_waiting
    return made


class CountedQuotas(Quotas):
    num_asked = 0

    def excess(self, tenant: str, num_bytes: int) -> int:
        self.num_asked += bool(num_bytes)
        return super().excess(tenant, num_bytes)


class Waiting:
    """Tenants t000, t001, ... with requests, and what of them is looked at."""

    def __init__(self, num_blocks: int) -> None:
        config = AccountConfig()
        self.accounts = Accounts(config, prices_of(config, 100))
        self.quotas = CountedQuotas()
        self.versions: dict[int, Version] = {}
        self.looks = 0
        pool = HostPool(num_blocks * BLOCK)
        self.loading = Loading(pool, self.quotas, 4, 4, self._turns, lambda _: 0.0, lambda _: None)

    def limit(self, number: int) -> None:
        """Room for one adapter."""
        self.quotas.limit(f"t{number:03}", BLOCK)

    def wants(self, number: int) -> None:
        tenant = f"t{number:03}"
        self.accounts.arrive(str(number), Tenant(tenant))
        self.versions[number] = version(f"a{number}", tenant, number)
        self.loading.want(self.versions[number])

    def _turns(self, queue, may):  # type: ignore[no-untyped-def]
        def counted(tenant: str) -> bool:
            self.looks += 1
            return bool(may(tenant))

        return self.accounts.turns(queue.tenants, aged=queue, is_candidate=counted, slack=0.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["want", "unwant", "nobody waits", "near", "all far", "hold", "release", "look"]
        ),
        st.sampled_from(NAMES),
        st.sampled_from(TENANTS),
        st.booleans(),
    ),
    max_size=150,
)


@given(STEPS)
def test_a_queue_s_head_is_what_its_tenant_has_wanted_for_longest(
    steps: list[tuple[str, str, str, bool]],
) -> None:
    near: set[str] = set()
    wanted = Wanted(near.__contains__)
    versions: dict[str, Version] = {}
    held_up: set[str] = set()
    for order, (step, name, tenant, flag) in enumerate(steps):
        held = versions.get(name)
        if step == "want":
            held = versions.setdefault(name, version(name))
            held.order, held.tenant, held.num_waiting = order, tenant, int(flag)
            wanted.add(held)
            held_up.discard(tenant)
        elif step == "unwant" and held is not None:
            wanted.remove(versions.pop(name))
        elif step == "nobody waits" and held is not None:
            held.num_waiting = 0
        elif step == "near" and held is None:
            near.add(version(name).key)
        elif step == "all far":
            near.clear()
        elif step == "hold" and any(v.tenant == tenant for v in versions.values()):
            wanted.hold(tenant)
            held_up.add(tenant)
        elif step == "release":
            wanted.release(tenant)
            held_up.discard(tenant)
        wanted.check()
        if step != "look":
            continue
        # From the front, as loads are started: what requests wait for comes first.
        for asked in (True, False):
            for is_near in (False, True):
                queue = wanted.queue(asked=asked, near=is_near)
                for of in set(TENANTS) - held_up:
                    found = [
                        v
                        for v in versions.values()
                        if v.tenant == of
                        and (v.num_waiting > 0) == asked
                        and (v.key in near or not is_near)
                    ]
                    best = min(found, key=lambda v: v.order, default=None)
                    assert queue.head(of) is best
                    assert queue.age(of) == (float("inf") if best is None else best.order)
                assert not held_up.intersection(queue.tenants)
    assert len(wanted) == len(versions)


def test_starting_two_of_a_thousand_looks_at_few() -> None:
    """One each of a thousand tenants; and where there is no room for the next, at none, until there
    is, or the next one goes, or for a while."""
    waiting = Waiting(num_blocks=2)
    loading = waiting.loading
    for i in range(1000):
        waiting.wants(i)
    for i in range(1000):
        waiting.accounts.served_elsewhere(f"t{i:03}", 1000.0 - i)
    started = loading.start(0.0)
    assert [load.ref.tenant for load in started] == ["t999", "t998"]
    assert waiting.looks < 10

    waiting.looks = 0
    assert loading.start(0.0) == [] and not waiting.looks
    assert loading.start(LOOK_AGAIN_S) == [] and 0 < waiting.looks < 10, "accounts move on"
    loading.unwant(waiting.versions[997])
    waiting.looks = 0
    assert loading.start(LOOK_AGAIN_S) == [] and 0 < waiting.looks < 10
    gone = loading.done(started[0].load_id, succeeded=False)
    assert gone is not None
    loading.drop(gone)
    assert [load.ref.tenant for load in loading.start(LOOK_AGAIN_S)] == ["t996"]
    loading.check()


def test_tenants_at_their_quota_are_asked_again_once_something_of_theirs_has_changed() -> None:
    waiting = Waiting(num_blocks=1000)
    loading = waiting.loading
    for i in range(200):
        waiting.limit(i)
        waiting.wants(i)
        loading.want(version(f"b{i}", f"t{i:03}", 1000 + i))
    while loads := loading.start(0.0):
        for load in loads:
            assert loading.done(load.load_id, succeeded=True) is not None
    assert all(waiting.versions[i].state is State.HOST for i in range(200))

    waiting.quotas.num_asked = 0
    waiting.looks = 0
    assert loading.start(0.0) == [] and not waiting.quotas.num_asked and not waiting.looks
    loading.check()
    served = waiting.versions[7]
    served.num_waiting = 0
    loading.refresh(served)  # it may go now
    (load,) = loading.start(0.0)
    assert load.ref.name == "b7" and waiting.quotas.num_asked < 10
    loading.check()

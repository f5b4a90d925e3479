"""Whose load comes next, against a look at all that are wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.accounts import Accounts
from engine.adapters.host import HostPool
from engine.adapters.loading import Loading
from engine.adapters.quotas import Quotas
from engine.adapters.version import Version
from engine.adapters.wanted import Wanted
from engine.config import AccountConfig
from engine.prices import prices_of
from engine.stepcost import LineCost
from engine.types import Tenant
from tests.support.world import adapter

NAMES = "abcd"
TENANTS = "xyz"
BLOCK = 4096


def version(name: str, tenant: str = "t", order: int = 0, num_waiting: int = 1) -> Version:
    made = Version(adapter(name, 1, tenant), BLOCK, 1, tenant)
    made.order, made.num_waiting = order, num_waiting
    return made


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["want", "unwant", "nobody waits", "near", "all far", "look"]),
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
    for order, (step, name, tenant, flag) in enumerate(steps):
        held = versions.get(name)
        if step == "want":
            held = versions.setdefault(name, version(name))
            held.order, held.tenant, held.num_waiting = order, tenant, int(flag)
            wanted.add(held)
        elif step == "unwant" and held is not None:
            wanted.remove(versions.pop(name))
        elif step == "nobody waits" and held is not None:
            held.num_waiting = 0
        elif step == "near" and held is None:
            near.add(version(name).key)
        elif step == "all far":
            near.clear()
        wanted.check()
        if step != "look":
            continue
        # From the front, as loads are started: what requests wait for comes first.
        for asked in (True, False):
            for is_near in (False, True):
                queue = wanted.queue(asked=asked, near=is_near)
                for of in TENANTS:
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
    assert len(wanted) == len(versions)


def test_starting_two_of_a_thousand_looks_at_few() -> None:
    """One each of a thousand tenants; and again where there is no room for the next."""
    config = AccountConfig()
    accounts = Accounts(config, prices_of(config, LineCost(), 100))
    looks = 0

    def turns(among, age, may):  # type: ignore[no-untyped-def]
        def counted(tenant: str) -> bool:
            nonlocal looks
            looks += 1
            return bool(may(tenant))

        return accounts.turns(among, age=age, is_candidate=counted, slack=0.0)

    loading = Loading(HostPool(2 * BLOCK), Quotas(), 4, 4, turns, lambda _: 0.0, lambda _: None)
    for i in range(1000):
        tenant = f"t{i:03}"
        accounts.arrive(str(i), Tenant(tenant))
        accounts.account(tenant).settled = float(1000 - i)
        loading.want(version(f"a{i}", tenant, i))
    started = loading.start(0.0)
    assert [load.ref.tenant for load in started] == ["t999", "t998"]
    assert loading.start(0.0) == [] and looks < 10
    loading.check()

"""A load is charged once, to the tenant whose adapter it is, and not where a neighbour is why."""

from __future__ import annotations

from dataclasses import replace

from engine.adapters.cache import Tier
from engine.config import AccountConfig
from engine.types import AdapterRef
from tests.support.world import PAGE_BYTES, World, adapter, config

PAGES, W_LOAD = 2, float(1 << 20)  # a weighted token for each byte
BYTES = PAGES * PAGE_BYTES
FEW = 6  # places on the device, and blocks in host memory


def world_of() -> World:
    settings = config(
        num_pages=1 + 16 + FEW * PAGES,
        host_bytes=FEW * 4096,
        accounts=replace(AccountConfig(default_output=8), w_load=W_LOAD),
    )
    return World(settings)


def use(world: World, ref: AdapterRef, times: int = 1) -> None:
    for _ in range(times):
        world.submit(f"r{len(world.answers)}", tenant=ref.tenant, ref=ref, prompt=5, max_tokens=4)
    world.run()


def served(world: World, tenant: str) -> float:
    return world.engine.scheduler.accounts.account(tenant).served


def test_one_load_is_charged_once_however_many_ask() -> None:
    world = world_of()
    use(world, adapter("a", PAGES, "x"), times=4)
    use(world, adapter("a", PAGES, "x"))
    assert served(world, "x") == BYTES + 5 * (5 + 2 * 4)


def test_a_neighbours_doing_is_not_charged_and_ones_own_is() -> None:
    world = world_of()
    mine = [adapter(f"m{i}", PAGES, "x") for i in range(2 * FEW)]
    for ref in mine:
        use(world, ref)
    use(world, mine[0])
    assert world.loads[-1].ref == mine[0] and len(world.loads) == 2 * FEW + 1
    assert served(world, "x") == (2 * FEW + 1) * (BYTES + 13)
    for i in range(2 * FEW):
        use(world, adapter(f"o{i}", PAGES, "y"))
    assert world.engine.scheduler.cache.tier(mine[0]) is Tier.COLD
    before = served(world, "x")
    use(world, mine[0])
    assert world.loads[-1].ref == mine[0]
    assert served(world, "x") == before + 13

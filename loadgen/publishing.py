"""Makes what a workload needs on a loraplex service: tenants, and synthetic adapters of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.client.roster import MADE, Member, Roster
from loadgen.client.service import Service
from loadgen.synthetic import Base, make_adapter

NUM_AT_ONCE = 3

Told = Callable[[int, int], None]
"""Called with (adapters done, adapters in all)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Of adapters: ranks in turn, and modules."""

    base: Base
    ranks: Sequence[int]
    modules: Sequence[str]
    seed: int


def service_tenant(tenant: str) -> str:
    """The service's tenant for a workload's."""
    return f"{MADE}{tenant}"


async def publish(
    service: Service,
    wanted: Mapping[str, Sequence[str]],
    kind: Kind,
    known: Roster | None,
    weights: Mapping[str, float],
    told: Told,
) -> Roster:
    """A roster with every tenant and adapter of `wanted`, what was missing made.

    known: the roster written before; a tenant that it lacks gets a new key. Raises ServiceError,
    BaseError.
    """
    members: list[Member] = [] if known is None else list(known.members)
    missing: list[tuple[str, str, int]] = []
    number = 0
    for tenant, adapters in wanted.items():
        name = service_tenant(tenant)
        found = next((m for m in members if m.tenant == name), None)
        if found is None:
            key = await service.tenant_key(name, weight=weights.get(tenant, 1.0))
            found = Member(name, key, ())
        else:
            members.remove(found)
        there = await service.models(name)
        missing += [(name, a, number + i) for i, a in enumerate(adapters) if a not in there]
        number += len(adapters)
        models = dict.fromkeys([*found.models, *(f"{name}/{a}" for a in adapters)])
        members.append(Member(name, found.key, tuple(models)))
    await _publish_all(service, missing, kind, told)
    return Roster(tuple(members))


async def _publish_all(
    service: Service, missing: Sequence[tuple[str, str, int]], kind: Kind, told: Told
) -> None:
    slots, done = asyncio.Semaphore(NUM_AT_ONCE), 0

    async def one(tenant: str, name: str, number: int) -> None:
        nonlocal done
        async with slots:
            rank = kind.ranks[number % len(kind.ranks)]
            files = make_adapter(kind.base, rank, kind.modules, kind.seed + number)
            await service.publish(tenant, name, files)
        done += 1
        told(done, len(missing))

    async with asyncio.TaskGroup() as group:
        for item in missing:
            group.create_task(one(*item))

"""The replicas as the ingress asks them, over a handle of our own making."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from deployments.ingress.handles import RayReplicas
from engine.errors import Unavailable
from engine.types import adapter_to_wire
from tests.support.replicas import adapter


class Broadcast:
    """Answers once it is let go, with what it was given."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.go = asyncio.Event()

    async def results_async(self, *, timeout_s: float, return_exceptions: bool) -> list[Any]:
        assert return_exceptions
        async with asyncio.timeout(timeout_s):
            await self.go.wait()
        return self.answers


class Handle:
    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.broadcasts: list[Broadcast] = []
        self.told: list[tuple[Any, ...]] = []

    def broadcast(self, method: str, *args: Any) -> Broadcast:
        self.told.append((method, *args))
        self.broadcasts.append(Broadcast(self.answers))
        return self.broadcasts[-1]

    async def asked(self, num_times: int) -> None:
        while len(self.broadcasts) < num_times:
            await asyncio.sleep(0)


async def test_askers_share_the_broadcast_under_way() -> None:
    handle = Handle([{"ready": True}, RuntimeError("lost")])
    replicas = RayReplicas(handle)  # type: ignore[arg-type]
    asking = [asyncio.create_task(replicas.statuses(30)) for _ in range(50)]
    await handle.asked(1)
    asking[0].cancel()  # one that goes away takes nothing from the others
    await asyncio.sleep(0)
    handle.broadcasts[0].go.set()
    answers = await asyncio.gather(*asking[1:])
    assert answers == [[{"ready": True}]] * 49 and len(handle.broadcasts) == 1

    again = asyncio.create_task(replicas.statuses(30))
    await handle.asked(2)
    handle.broadcasts[1].go.set()
    assert await again == [{"ready": True}]


async def test_no_answer_in_time_is_unavailable() -> None:
    replicas = RayReplicas(Handle([]))  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="in time"):
        await replicas.statuses(0.01)


@pytest.mark.parametrize("answers", [[None, None], [None, ActorDiedError()], []])
async def test_every_living_replica_is_told_of_what_is_retired(answers: list[Any]) -> None:
    handle = Handle(answers)
    refs = [adapter("one"), adapter("two")]
    telling = asyncio.create_task(RayReplicas(handle).drop(refs, True, 30))  # type: ignore[arg-type]
    await handle.asked(2)
    for broadcast in handle.broadcasts:
        broadcast.go.set()
    await telling
    assert handle.told == [("drop", adapter_to_wire(ref), True) for ref in refs]


async def test_a_replica_that_was_not_told_is_no_success() -> None:
    handle = Handle([None, ValueError("of another release")])
    telling = asyncio.create_task(
        RayReplicas(handle).drop([adapter("one")], True, 30)  # type: ignore[arg-type]
    )
    await handle.asked(1)
    handle.broadcasts[0].go.set()
    with pytest.raises(Unavailable, match="another release"):
        await telling
    with pytest.raises(Unavailable, match="Not every replica"):
        await RayReplicas(Handle([])).drop([adapter("one")], True, 0.01)  # type: ignore[arg-type]

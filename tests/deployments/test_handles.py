"""The replicas as the ingress asks them, over a handle of our own making."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deployments.handles import RayReplicas
from engine.errors import Unavailable


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

    def broadcast(self, method: str) -> Broadcast:
        assert method == "status"
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

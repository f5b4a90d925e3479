"""What each replica answers to a call of all of them, one that hangs without the others' loss.

Ray's own `results_async` is all or nothing: where one is late, the answers that have come are lost.
So each is awaited by itself here, by what that method is made of in the Ray of requirements.lock.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray.serve._private.replica_result import ReplicaResult
from ray.serve.handle import DeploymentBroadcastResponse


async def answers(response: DeploymentBroadcastResponse, timeout_s: float) -> list[Any]:
    """One for each replica that was called: what it said, or the exception that it ended with; a
    TimeoutError where that hasn't come after `timeout_s`. Raises TimeoutError where Ray has not
    even called them by then, and what Ray raises at that."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    async with asyncio.timeout(timeout_s):
        called = await response._fetch_replica_results_async()
    asking = [asyncio.ensure_future(_said(one)) for one in called]
    try:
        if asking:
            await asyncio.wait(asking, timeout=max(0.0, until_s - loop.time()))
        return [_outcome(task) for task in asking]
    finally:
        for task in asking:
            task.cancel()


async def _said(one: ReplicaResult) -> Any:
    return await one.get_async()  # type: ignore[no-untyped-call]


def _outcome(task: asyncio.Future[Any]) -> Any:
    if not task.done():
        return TimeoutError("a replica doesn't answer in time")
    if task.cancelled():  # at the replica's end
        return asyncio.CancelledError()
    return task.exception() or task.result()

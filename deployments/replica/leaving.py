"""The end of a replica whose core has died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from deployments.platform.serve_process import tell_control

log = logging.getLogger("loraplex.replica")

TELL_S = 2.0
"""For word to control: a process that is about to end has no counter that anybody reads."""


async def tell_core_death() -> None:
    await tell_control("core_died")


async def leave_soon(
    num_calls: Callable[[], int],
    drain_s: float,
    clock: Callable[[], float],
    tell: Callable[[], Awaitable[None]] = tell_core_death,
    tell_s: float = TELL_S,
) -> None:
    """Returns when this process may end: the error events have left our hands once no call is open
    (Ray then still sends the last), and control has been told, each within its time."""
    telling = asyncio.create_task(_told(tell))
    try:
        until = clock() + drain_s
        while num_calls() and clock() < until:
            await asyncio.sleep(0.01)
        await asyncio.sleep(drain_s / 2)
        await asyncio.wait({telling}, timeout=tell_s)
    finally:
        telling.cancel()


async def _told(tell: Callable[[], Awaitable[None]]) -> None:
    try:
        await tell()
    except Exception as error:
        log.warning("Control can't be told of the core's death: %s", error)

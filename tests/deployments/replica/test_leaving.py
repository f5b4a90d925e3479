"""A replica whose core has died leaves once its errors are out and control knows, and not late."""

from __future__ import annotations

import asyncio

import pytest

from deployments.replica.leaving import leave_soon


async def test_it_stays_for_its_open_calls_and_for_control(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls, heard = 1, asyncio.Event()
    told = asyncio.Event()

    async def tell() -> None:
        await heard.wait()
        told.set()

    leaving = asyncio.create_task(leave_soon(lambda: calls, 60.0, lambda: 0.0, tell))
    await asyncio.sleep(0.05)
    assert not leaving.done(), "a call is open"
    leaving.cancel()
    calls = 0
    leaving = asyncio.create_task(leave_soon(lambda: calls, 0.0, lambda: 0.0, tell, 60.0))
    await asyncio.sleep(0.05)
    assert not leaving.done(), "control has not heard"
    heard.set()
    await asyncio.wait_for(leaving, 60)
    assert told.is_set() and caplog.records == []


@pytest.mark.parametrize("fails", [True, False])
async def test_it_leaves_without_control(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def tell() -> None:
        if fails:
            raise RuntimeError("control is not there")
        await asyncio.Event().wait()

    async with asyncio.timeout(60):
        await leave_soon(lambda: 0, 0.0, lambda: 0.0, tell, 0.05)
    assert ("control is not there" in caplog.text) == fails

"""A replica whose core has died leaves once its errors are out and control knows, and not late."""

from __future__ import annotations

import asyncio

import pytest

from deployments.replica.leaving import leave_soon


class Control:
    """Has been told once it is let hear; notes when nobody tells it any more."""

    def __init__(self) -> None:
        self.asked, self.heard = asyncio.Event(), asyncio.Event()
        self.told, self.given_up = asyncio.Event(), asyncio.Event()

    async def tell(self) -> None:
        self.asked.set()
        try:
            await self.heard.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        self.told.set()


async def test_it_stays_for_its_open_calls() -> None:
    control = Control()
    control.heard.set()
    leaving = asyncio.create_task(leave_soon(lambda: 1, 60.0, lambda: 0.0, control.tell))
    await asyncio.wait_for(control.told.wait(), 60)
    await asyncio.sleep(0.05)
    assert not leaving.done(), "a call is open"
    leaving.cancel()


async def test_it_stays_for_control(caplog: pytest.LogCaptureFixture) -> None:
    control = Control()
    leaving = asyncio.create_task(leave_soon(lambda: 0, 0.0, lambda: 0.0, control.tell, 60.0))
    await asyncio.wait_for(control.asked.wait(), 60)
    await asyncio.sleep(0.05)
    assert not leaving.done(), "control has not heard"
    control.heard.set()
    await asyncio.wait_for(leaving, 60)
    assert control.told.is_set() and caplog.records == []


async def test_who_no_longer_leaves_tells_nobody() -> None:
    control = Control()
    leaving = asyncio.create_task(leave_soon(lambda: 1, 60.0, lambda: 0.0, control.tell))
    await asyncio.wait_for(control.asked.wait(), 60)
    leaving.cancel()
    await asyncio.wait_for(control.given_up.wait(), 60)
    assert not control.told.is_set()


@pytest.mark.parametrize("fails", [True, False])
async def test_it_leaves_without_control(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def tell() -> None:
        if fails:
            raise RuntimeError("control is not there")
        await asyncio.Event().wait()

    async with asyncio.timeout(60):
        await leave_soon(lambda: 0, 0.0, lambda: 0.0, tell, 0.05)
    assert ("control is not there" in caplog.text) == fails

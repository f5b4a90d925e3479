"""Tokens a minute: one bucket however many ingresses there are, honest waits, and what happens
while control is away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.control.token_book import TokenBook
from deployments.ingress.token_limits import AWAY_S, TokenLimits
from deployments.registry.records import TenantRecord
from engine.errors import (
    InvalidRequest,
    LoraplexError,
    NotFound,
    ReplicaLost,
    RequestTimeout,
    TooManyRequests,
    Unavailable,
)
from engine.types import Tenant
from tests.support.ingress import (
    HANG,
    InProcess,
    ScriptedModel,
    World,
    announce,
    bearer,
    error_of,
    last,
)
from tests.support.virtual import VirtualClock


class Bank:
    """Control, near or away."""

    def __init__(self, clock: VirtualClock) -> None:
        self.book = TokenBook(clock)
        self.away = False

    async def lease_tokens(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.away:
            raise Unavailable("away")
        return self.book.lease(order)


class Service:
    """Ingresses that share one bank. `used`: tokens that were let in."""

    def __init__(self, num: int) -> None:
        self.clock = VirtualClock()
        self.bank = Bank(self.clock)
        self.ingresses = [TokenLimits(self.bank, num, self.clock) for _ in range(num)]
        self.used = 0

    async def ask(
        self, ingress: int, prompt: int, output: int = 0, limit: int = 6000, tenant: str = "t"
    ) -> None:
        limits = self.ingresses[ingress]
        ticket = await limits.admit(Tenant(tenant, max_tokens_per_minute=limit), prompt)
        ticket.produced(output)
        self.used += prompt + output

    async def flood(self, ingress: int, **ask: Any) -> float:
        """Until it is refused; the wait that it was told."""
        while True:
            try:
                await self.ask(ingress, 50, **ask)
            except TooManyRequests as error:
                assert error.retry_after_s is not None and error.code == "tokens_per_minute"
                return error.retry_after_s

    async def settle(self) -> None:
        for ingress in self.ingresses:
            await ingress.settle()


async def test_three_ingresses_let_in_no_more_than_one() -> None:
    one, three = Service(1), Service(3)
    for service, order in ((one, [0]), (three, [0, 1, 2])):
        for _ in range(20):
            for ingress in order:
                await service.flood(ingress, output=10)
            await service.settle()
            service.clock.sleep(6.0)
    minutes = 19 * 6 / 60 + 1
    for service in (one, three):
        assert minutes * 6000 - 60 <= service.used <= minutes * 6000 + 3 * 60


async def test_the_wait_that_is_told_is_enough_and_not_much_too_long() -> None:
    service = Service(2)
    for _ in range(5):
        wait_s = await service.flood(0)
        await service.settle()
        service.clock.sleep(0.9 * wait_s)
        with pytest.raises(TooManyRequests):
            await service.ask(1, 50)
        service.clock.sleep(0.1 * wait_s + 1e-6)
        await service.ask(1, 50)


async def test_long_answers_are_owed_and_what_we_failed_is_given_back() -> None:
    service = Service(1)
    await service.ask(0, 100, output=12_000)
    with pytest.raises(TooManyRequests) as refused:
        await service.ask(0, 100)
    assert refused.value.retry_after_s == pytest.approx((12_100 - 6000 + 100) / 100)
    service.clock.sleep(refused.value.retry_after_s)
    ticket = await service.ingresses[0].admit(Tenant("t", max_tokens_per_minute=6000), 100)
    for error in (ReplicaLost("lost"), InvalidRequest("refused"), ReplicaLost("again")):
        ticket.failed(error)
    await service.ask(0, 100)
    with pytest.raises(TooManyRequests):
        await service.ask(0, 1)


@pytest.mark.parametrize(
    ("end", "is_given_back"),
    [
        (HANG, False),  # its client goes
        (RequestTimeout("too long"), False),
        (NotFound("retired", code="adapter_retired"), False),
        (ReplicaLost("lost"), True),
        (Unavailable("overloaded"), True),
        ([last(0, "x")], False),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_given_back_where_we_failed_it_and_not_where_its_client_goes(
    world: World, end: Any, is_given_back: bool, stream: bool
) -> None:
    world.control.clock = VirtualClock()
    world.control.tokens = TokenBook(world.control.clock)
    key = world.tenants.create(TenantRecord("few", max_tokens_per_minute=50))[1]
    body = {"model": "org/tiny", "prompt": "x" * 40, "max_tokens": 1, "stream": stream}
    world.model.script = lambda call: [end]
    async with InProcess(world) as client:
        called = announce(world.model)
        first = asyncio.create_task(client.post("/v1/completions", json=body, headers=bearer(key)))
        await called.wait()
        if end == HANG:
            first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        world.model.script = ScriptedModel().script
        again = await client.post("/v1/completions", json=body, headers=bearer(key))
        assert again.status_code == (200 if is_given_back else 429)


async def test_a_prompt_above_the_limit_can_never_go_and_tenants_dont_meet() -> None:
    service = Service(1)
    with pytest.raises(InvalidRequest, match="your limit is 6000 tokens a minute"):
        await service.ask(0, 6001)
    await service.flood(0)
    await service.ask(0, 50, tenant="another")
    for _ in range(1000):
        await service.ingresses[0].admit(Tenant("free"), 10**6)


async def test_without_control_each_has_its_part_and_control_learns_of_it() -> None:
    service = Service(2)
    service.bank.away = True
    for ingress in (0, 1):
        assert 0.1 <= await service.flood(ingress) <= 60
    assert service.used == 6000
    service.bank.away = False
    service.clock.sleep(AWAY_S)
    await service.settle()
    with pytest.raises(TooManyRequests):
        await service.ask(0, 200)
    service.clock.sleep(5.0)
    await service.ask(1, 200)


async def test_limits_change_and_two_ingresses_share_a_bucket(
    tmp_path: Path,
) -> None:
    """By REST, against two ingresses of one registry and one control, on real clocks."""
    world = World.build(tmp_path)
    admin = bearer(world.keys["admin"])
    body = {"model": "org/tiny", "prompt": "x" * 30, "max_tokens": 2}
    async with InProcess(world) as one, InProcess(world) as two:

        async def change(limit: int | None) -> None:
            answer = await one.patch(
                "/v1/tenants/t1", json={"max_tokens_per_minute": limit}, headers=admin
            )
            assert answer.json()["max_tokens_per_minute"] == limit

        async def refusal(client: httpx.AsyncClient) -> httpx.Response:
            for _ in range(20000):
                answer = await client.post("/v1/completions", json=body)
                if answer.status_code != 200:
                    return answer
            raise AssertionError("everything is let in")

        await change(64)
        refused = await refusal(one)
        error = error_of(refused, 429)
        assert error["code"] == "tokens_per_minute" and "64 tokens a minute" in error["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert error_of(await refusal(two), 429)["code"] == "tokens_per_minute"
        other = await two.post("/v1/completions", json=body, headers=bearer(world.keys["t2"]))
        assert other.status_code == 200
        await change(None)
        for client in (one, two):
            await _eventually_all_right(client, body)


async def _eventually_all_right(client: httpx.AsyncClient, body: dict[str, Any]) -> None:

    async with asyncio.timeout(60):  # the registry is polled four times a second
        while (await client.post("/v1/completions", json=body)).status_code != 200:
            await asyncio.sleep(0.02)


def test_an_order_that_cant_be_read_is_refused() -> None:
    book = TokenBook(VirtualClock())
    good = {"v": 1, "tenant": "t", "per_minute": 6, "used": 0, "at_least": 1, "wanted": 1}
    assert book.lease(good)["granted"] == 1
    for bad in ({**good, "v": 2}, {**good, "per_minute": 0}, {"v": 1}, {**good, "used": "x"}):
        with pytest.raises(LoraplexError):
            book.lease(bad)

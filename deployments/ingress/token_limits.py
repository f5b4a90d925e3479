"""An ingress's side of the tokens a minute: what it was granted, used, and owes.

A prompt is charged when its request is let in, output as it comes. Control has the one bucket; an
ingress borrows from it half a second's worth at once, and settles as often. While control can't be
reached each ingress keeps buckets of its own, its part of the limit, and tells control later what
was used.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from deployments.control.token_book import TOKENS_VERSION
from engine.errors import (
    AdapterRejected,
    InvalidRequest,
    LoraplexError,
    TooManyRequests,
    Unavailable,
)
from engine.types import Tenant
from router.token_bucket import MINUTE_S, TokenBucket

logger = logging.getLogger(__name__)
SETTLE_S = 0.5
TIMEOUT_S = 1.0
AWAY_S = 1.0
"""How long control isn't asked again after it couldn't be reached."""
NOT_BEGUN = frozenset({Unavailable.status, InvalidRequest.status, AdapterRejected.status})
"""The service failed, or a replica refused the request before it computed anything. Neither that
its client goes nor that its adapter is retired is among them: a tenant could have prompts read for
nothing by that."""


class Lender(Protocol):
    async def lease_tokens(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `token_book`. Raises LoraplexError where control can't be reached."""
        ...


class TokenTicket:
    """The tokens of one client request. Of a tenant without a limit nothing is counted."""

    def __init__(self, limits: TokenLimits, tenant: Tenant, num_prompt: int) -> None:
        self._limits = limits
        self._tenant = tenant
        self._num_prompt = num_prompt

    def produced(self, num_tokens: int) -> None:
        self._num_prompt = 0
        self._limits.use(self._tenant, num_tokens)

    def failed(self, error: LoraplexError) -> None:
        """It ended so. Where that was none of its tenant's doing and nothing was produced, its
        prompt is given back."""
        if error.status in NOT_BEGUN:
            num_tokens, self._num_prompt = self._num_prompt, 0
            self._limits.use(self._tenant, -num_tokens)


@dataclass(slots=True, eq=False)
class TokenLimits:
    """control: who has the buckets. num_ingresses: of the service. clock: seconds, monotonic."""

    control: Lender
    num_ingresses: int
    clock: Callable[[], float]
    _held: dict[str, float] = field(default_factory=dict, init=False)
    _limit_of: dict[str, int] = field(default_factory=dict, init=False)
    _own: dict[str, TokenBucket] = field(default_factory=dict, init=False)
    _away_until_s: float = field(default=-math.inf, init=False)

    async def admit(self, tenant: Tenant, num_prompt: int) -> TokenTicket:
        """Lets in a request with so many prompt tokens. Raises TooManyRequests (with
        `retry_after_s`, by the bucket), and InvalidRequest where waiting can't help."""
        limit = tenant.max_tokens_per_minute
        if limit is None:
            self._held.pop(tenant.id, None)
            return TokenTicket(self, tenant, 0)
        if num_prompt > limit:
            raise InvalidRequest(
                f"The prompt has {num_prompt} tokens; your limit is {limit} tokens a minute."
                " Shorten it, or ask for a higher limit.",
                code="token_limit_exceeded",
            )
        if self._limit_of.get(tenant.id) != limit:
            self._limit_of[tenant.id] = limit
        if self._held.get(tenant.id, 0.0) < num_prompt:
            await self._borrow(tenant.id, limit, num_prompt)
        self._add(tenant.id, -num_prompt)
        return TokenTicket(self, tenant, num_prompt)

    def use(self, tenant: Tenant, num_tokens: int) -> None:
        """Output that was produced, or what is given back where it is negative."""
        if tenant.max_tokens_per_minute is None or not num_tokens:
            return
        self._add(tenant.id, -num_tokens)
        own = self._own.get(tenant.id)
        if own is not None:
            own.use(num_tokens, self.clock())

    async def settle(self) -> None:
        """Tells control what is owed and gives back what isn't needed."""
        for tenant in list(self._held):
            if self._held.get(tenant) and not self._is_away:
                try:
                    await self._ask(tenant, self._limit_of[tenant], 0, 0)
                except LoraplexError as error:
                    self._lost(error)
            if not self._held.get(tenant):
                self._held.pop(tenant, None)

    async def run(self) -> None:
        """Settles for ever."""
        while True:
            await asyncio.sleep(SETTLE_S)
            try:
                await self.settle()
            except Exception:
                logger.exception("tokens can't be settled")

    # ------------------------------------------------------------------------------------------
    @property
    def _is_away(self) -> bool:
        return self.clock() < self._away_until_s

    async def _borrow(self, tenant: str, limit: int, num_tokens: int) -> None:
        if not self._is_away:
            try:
                answer = await self._ask(tenant, limit, num_tokens, limit * SETTLE_S / MINUTE_S)
            except LoraplexError as error:
                self._lost(error)
            else:
                self._own.pop(tenant, None)
                if answer["granted"] < num_tokens:
                    _refuse(limit, float(answer["left"]), float(answer["retry_after_s"]))
                return
        self._take_own(tenant, limit, num_tokens)

    async def _ask(
        self, tenant: str, limit: int, at_least: float, more: float
    ) -> Mapping[str, Any]:
        """Everything that is held goes back first, so that both sides agree."""
        held = self._held.pop(tenant, 0.0)
        order = {
            "v": TOKENS_VERSION,
            "tenant": tenant,
            "per_minute": limit,
            "used": -held,
            "at_least": at_least,
            "wanted": at_least + more,
        }
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self.control.lease_tokens(order)
        except TimeoutError:
            self._add(tenant, held)
            raise LoraplexError(f"Control did not answer within {TIMEOUT_S:g} s.") from None
        except BaseException:
            self._add(tenant, held)
            raise
        self._add(tenant, float(answer["granted"]))
        return answer

    def _take_own(self, tenant: str, limit: int, num_tokens: int) -> None:
        """From this ingress's part of the limit."""
        now, part = self.clock(), limit / self.num_ingresses
        own = self._own.setdefault(tenant, TokenBucket(part, now))
        own.set_limit(part, now)
        if own.left(now) < min(num_tokens, part):
            _refuse(limit, own.left(now), own.seconds_until(num_tokens, now))
        own.use(num_tokens, now)

    def _lost(self, error: LoraplexError) -> None:
        logger.warning("tokens a minute are counted by each ingress alone: %s", error.message)
        self._away_until_s = self.clock() + AWAY_S

    def _add(self, tenant: str, num_tokens: float) -> None:
        self._held[tenant] = self._held.get(tenant, 0.0) + num_tokens


def _refuse(limit: int, left: float, retry_s: float) -> None:
    retry_s = max(retry_s, 0.1)
    raise TooManyRequests(
        f"Your limit is {limit} tokens a minute, of which {max(0, int(left))} are left. Try again"
        f" in {math.ceil(retry_s)} s.",
        code="tokens_per_minute",
        retry_after_s=retry_s,
    )

"""The ingress's local copy of the registry: keys to callers, model names to adapter versions.

Changes are fetched every `poll_s`, so a revoked key serves nothing after about that long. What the
copy doesn't know is looked up once in the registry itself; "not there" is remembered for a second.
While the registry can't be reached the copy goes on serving.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator

from deployments.ingress.auth import Caller, wrong_key
from deployments.ingress.directory import Directory, split_model
from deployments.orders.tier_orders import TenantLimits
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import position
from deployments.registry.records import Role, TenantRecord, adapter_key, key_key, tenant_key
from deployments.registry.registry import Event, Gone, Registry
from engine.errors import LoraplexError, NotFound, PermissionDenied
from engine.types import AdapterRef

logger = logging.getLogger(__name__)
MAX_ABSENT = 10_000
PAGE = 1000
"""Records read at once."""
SLICE = 20
"""Records taken over at once: after an outage thousands have changed, and streams go on between."""


class Catalog:
    """Blocking registry calls are made from threads; all else runs on the event loop."""

    def __init__(
        self,
        registry: Registry,
        *,
        clock: Callable[[], float],
        poll_s: float = 0.25,
        negative_ttl_s: float = 1.0,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """draw: uniform in [0, 1), for requests without a session."""
        self._registry = registry
        self._clock = clock
        self._draw = draw
        self._poll_s = poll_s
        self._negative_ttl_s = negative_ttl_s
        self._directory = Directory()
        self._rev: int | None = None
        self._fresh_s: float | None = None
        self.num_failures = 0
        """Refreshes that failed."""
        self._absent: OrderedDict[str, float] = OrderedDict()
        self._changed: dict[str, TenantLimits] = {}
        self.tenants_changed = asyncio.Event()
        """`take_changed_tenants` has some."""

    async def refresh(self) -> None:
        """Fetch what changed. Raises Unavailable when the registry can't be reached."""
        asked_s = self._clock()
        if self._rev is not None:
            changes = await asyncio.to_thread(self._registry.changes, self._rev)
            if not isinstance(changes, Gone):
                for number, event in enumerate(changes.events, 1):
                    self._apply(event)
                    if number % SLICE == 0:
                        await asyncio.sleep(0)
                self._rev = changes.rev
                self._fresh_s = asked_s
                return
        before = self._directory
        self._directory, self._rev = await asyncio.to_thread(_read_all, self._registry)
        for record in self._directory.tenants():
            self._compare(before.tenant(record.key), record)
        # What was looked up since the listing may be missing from it: look it up again.
        self._absent.clear()
        self._fresh_s = asked_s

    @property
    def age_s(self) -> float | None:
        """Since the copy was last known to be the registry's own; None: never yet."""
        return None if self._fresh_s is None else self._clock() - self._fresh_s

    async def run(self) -> None:
        """Refresh for ever."""
        while True:
            try:
                await self.refresh()
            except LoraplexError as error:
                self.num_failures += 1
                logger.warning("registry: %s", error.message)
            except Exception:
                self.num_failures += 1
                logger.exception("a change of the registry can't be taken over")
            await asyncio.sleep(self._poll_s)

    async def caller(self, secret: str) -> Caller:
        """Raises Unauthenticated for an unknown or revoked key, PermissionDenied for a suspended
        tenant's."""
        where = key_key(secret)
        record = self._directory.key(where)
        if record is None and await self._look_up(where):
            record = self._directory.key(where)
        if record is None or record.revoked_s is not None:
            raise wrong_key()
        if record.role is Role.ADMIN:
            return Caller(None, record.hint)
        if record.tenant is None:
            raise wrong_key()
        where = tenant_key(record.tenant)
        tenant = self._directory.tenant(where)
        if tenant is None and await self._look_up(where):
            tenant = self._directory.tenant(where)
        if tenant is None:
            raise wrong_key()
        if tenant.suspended:
            raise PermissionDenied(f"Tenant {tenant.id} is suspended.", code="tenant_suspended")
        hints = self._directory.hints(tenant.id)
        return Caller(tenant.tenant(), record.hint, tenant.self_publish, tenant.log_content, hints)

    async def resolve(self, model: str, tenant: str, session: str = "") -> AdapterRef:
        """The version that `model` means for `tenant`, by its session (or user) where an alias
        splits between two: the same one each time, and none moves back as a canary widens. "": a
        request of no session, on its own.

        Raises NotFound, in the same words whether it doesn't exist, was retired, can't be a name or
        is another tenant's.
        """
        parts = split_model(model, tenant)
        if parts is None:
            raise unknown_model(model)
        name, selector = parts

        def at() -> float:
            return position(tenant, name, selector, session) if session else self._draw()

        def pick() -> AdapterRef | None:
            record = self._directory.adapter(tenant, name)
            return None if record is None else record.resolve(selector, at)

        ref = pick()
        if ref is None and await self._look_up(adapter_key(tenant, name)):
            ref = pick()
        if ref is None:
            raise unknown_model(model)
        return ref

    def adapter(self, tenant: str, name: str) -> AdapterRecord | None:
        return self._directory.adapter(tenant, name)

    async def find_adapter(self, tenant: str, name: str) -> AdapterRecord | None:
        """As `adapter`; what the copy doesn't have is asked for as in `resolve`."""
        record = self._directory.adapter(tenant, name)
        if record is None and await self._look_up(adapter_key(tenant, name)):
            record = self._directory.adapter(tenant, name)
        return record

    def adapters(self, tenant: str | None = None) -> Iterator[AdapterRecord]:
        return self._directory.adapters(tenant)

    def take_changed_tenants(self) -> dict[str, TenantLimits]:
        """Known tenants whose values are others than they were, since the last call."""
        changed, self._changed = self._changed, {}
        self.tenants_changed.clear()
        return changed

    async def _look_up(self, key: str) -> bool:
        """Ask the registry itself, unless it said so within the last second."""
        now = self._clock()
        if self._absent.get(key, float("-inf")) > now:
            return False
        entry = await asyncio.to_thread(self._registry.get, key)
        if entry is not None:
            self._apply(Event(entry.key, entry.value, entry.rev))
        # Also what was there but didn't serve (a retired name) is not asked for again at once.
        self._absent[key] = now + self._negative_ttl_s
        self._absent.move_to_end(key)
        while len(self._absent) > MAX_ABSENT:
            self._absent.popitem(last=False)
        return entry is not None

    def _apply(self, event: Event) -> None:
        self._absent.pop(event.key, None)
        before = self._directory.tenant(event.key)
        _apply(self._directory, event)
        self._compare(before, self._directory.tenant(event.key))

    def _compare(self, before: TenantRecord | None, after: TenantRecord | None) -> None:
        if before is None or after is None or before.tenant() == after.tenant():
            return
        self._changed[after.id] = TenantLimits(after.tenant(), self._directory.rev(after.key))
        self.tenants_changed.set()


def _read_all(registry: Registry) -> tuple[Directory, int]:
    """Everything, and the revision to go on from. By pages: records parsed but not yet taken over
    need several times the memory of the copy."""
    directory, page = Directory(), registry.list("", limit=PAGE)
    rev = page.rev
    while True:
        for entry in page.entries:
            _apply(directory, Event(entry.key, entry.value, entry.rev))
        if len(page.entries) < PAGE:
            return directory, rev
        page = registry.list("", after=page.entries[-1].key, limit=PAGE)


def _apply(directory: Directory, event: Event) -> None:
    """One record that can't be read holds up none of the others."""
    try:
        directory.apply(event)
    except (ValueError, KeyError, TypeError):
        logger.exception("record %s can't be read", event.key)


def unknown_model(model: str) -> NotFound:
    return NotFound(
        f"The model '{model[:200]}' does not exist or you do not have access to it.",
        code="model_not_found",
        param="model",
    )

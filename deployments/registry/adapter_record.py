"""What the registry keeps of an adapter: its versions, and what its names stand for. Pure.

A record never grows without bound: of versions that no alias names the newest are kept, of
tombstones likewise, and of what went before those only digests wait for the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.registry.alias import (
    CANARY,
    MAX_ENDED,
    MAX_HISTORY,
    PRODUCTION,
    Alias,
    check_alias,
    is_digest,
)
from deployments.registry.records import adapter_key, known_fields
from deployments.registry.retention import retained
from deployments.registry.selection import select, tombstones
from deployments.registry.upgrade import ADAPTER_VERSION
from deployments.registry.version_record import Condemned, VersionRecord
from engine.errors import Conflict, InvalidRequest, NotFound
from engine.types import AdapterRef

MAX_ALIASES = 32
MAX_CONDEMNED = 1000


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """A tenant's adapter by name. Versions are in the order of their publishing; retired ones stay
    as tombstones for a while."""

    tenant: str
    name: str
    versions: tuple[VersionRecord, ...] = ()
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    condemned: tuple[Condemned, ...] = ()

    @property
    def key(self) -> str:
        return adapter_key(self.tenant, self.name)

    @property
    def model(self) -> str:
        return f"{self.tenant}/{self.name}"

    @property
    def status(self) -> str:
        """published: the bare name stands for something; kept: only versions or other aliases."""
        if PRODUCTION in self.aliases:
            return "published"
        return "kept" if any(v.live for v in self.versions) else "retired"

    @property
    def current(self) -> str | None:
        """The digest of production, without its canary."""
        alias = self.aliases.get(PRODUCTION)
        return None if alias is None else alias.digest

    @property
    def ref(self) -> AdapterRef | None:
        version = None if self.current is None else self.version(self.current)
        return None if version is None else version.ref

    def version(self, digest: str) -> VersionRecord | None:
        return next((v for v in self.versions if v.ref.digest == digest), None)

    def resolve(self, selector: str | None, at: Callable[[], float]) -> AdapterRef | None:
        """What `name@selector` stands for: see `selection.select`."""
        version = select(self.versions, self.aliases, selector, at)
        return None if version is None else version.ref

    def find(self, selector: str) -> VersionRecord:
        """The live version that an admin means by a digest's beginning or an alias.

        Raises NotFound; Conflict for a tombstone.
        """
        version = select(self.versions, self.aliases, selector, lambda: 1.0)
        if version is not None:
            return version
        dead = {v.ref.digest for v in self.tombstones()} | {c.digest for c in self.condemned}
        if is_digest(selector) and any(d.startswith(selector) for d in dead):
            raise Conflict(
                f"Version {selector[:12]} of {self.model} is retired. Publish its bytes again.",
                code="version_retired",
                param="version",
            )
        raise NotFound(
            f"{self.model} has no version or alias {selector[:80]!r}, or more than one version that"
            " begins so. `loraplex adapters show` lists them.",
            param="version",
        )

    def tombstones(self, selector: str | None = None) -> list[VersionRecord]:
        """See `selection.tombstones`."""
        return tombstones(self.versions, selector)

    # Changes --------------------------------------------------------------------------------------
    def with_version(self, version: VersionRecord) -> AdapterRecord:
        """`version` is the newest, in place of an earlier record of the same digest."""
        digest = version.ref.digest
        return replace(
            self,
            versions=(*(v for v in self.versions if v.ref.digest != digest), version),
            condemned=tuple(c for c in self.condemned if c.digest != digest),
        )

    def promoted(self, digest: str, alias: str = PRODUCTION) -> AdapterRecord:
        """`alias` stands for `digest` from now on. Its canary, if it is that version, is none any
        more. Raises InvalidRequest for a name that can't be an alias or one too many."""
        before = self.aliases.get(check_alias(alias))
        if before is None:
            if len(self.aliases) >= MAX_ALIASES:
                raise InvalidRequest(
                    f"{self.model} has {MAX_ALIASES} aliases. Remove one first.", param="as"
                )
            return self._with_alias(alias, Alias(digest))
        if before.canary == digest:
            before = before.without_canary()
        if before.digest != digest:
            history = (*(d for d in before.history if d != digest), before.digest)
            before = replace(before, digest=digest, history=history[-MAX_HISTORY:])
        return self._with_alias(alias, before)

    def with_canary(
        self,
        digest: str,
        weight: float | None,
        gate: bool | None = None,
        alias: str = PRODUCTION,
        *,
        at_s: float = 0.0,
    ) -> AdapterRecord:
        """`digest` gets the share `weight` of `alias`, None: that of the canary before it, if any;
        gate, at_s: see `Alias.with_canary`. Raises InvalidRequest, Conflict."""
        before = self._alias(alias)
        share = before.weight if weight is None else weight
        if not 0.0 <= share <= 1.0:
            raise InvalidRequest("weight is a share from 0 to 1.", param="weight")
        if before.digest == digest:
            already = f"{self.model}@{alias} stands for {digest[:12]} already"
            raise Conflict(f"{already}: its canary must be another version.", param="version")
        return self._with_alias(alias, before.with_canary(digest, share, gate, at_s))

    def rolled_back(
        self, alias: str = PRODUCTION, *, at_s: float = 0.0, why: str = ""
    ) -> AdapterRecord:
        """`alias` stands for what it stood for before; of `canary`, the canary ends: `why`.

        Raises NotFound, and Conflict where nothing is left to go back to.
        """
        if alias == CANARY:
            production = self._alias(PRODUCTION)
            if production.canary is None:
                raise Conflict(f"{self.model} has no canary.", code="nothing_before", param="as")
            return self._with_alias(PRODUCTION, production.without_canary(at_s, why))
        before = self._alias(alias)
        history = self._live_history(before)
        if not history:
            raise Conflict(
                f"Nothing that {self.model}@{alias} stood for before is left. Promote a version.",
                code="nothing_before",
                param="as",
            )
        back = history[-1]
        if before.canary == back:
            before = before.without_canary()
        return self._with_alias(alias, replace(before, digest=back, history=history[:-1]))

    def without_alias(self, alias: str) -> AdapterRecord:
        """Raises NotFound; Conflict for production, which goes with the adapter."""
        of = self._alias(PRODUCTION if alias == CANARY else alias)
        if alias == CANARY:
            if of.canary is None:
                raise NotFound(f"{self.model} has no canary.", param="as")
            return self.rolled_back(CANARY)
        if alias == PRODUCTION:
            raise Conflict(
                f"The bare name {self.model} needs production. Retire the adapter instead.",
                param="as",
            )
        return replace(self, aliases={n: a for n, a in self.aliases.items() if n != alias})

    def retired(self, at_s: float, by: str) -> AdapterRecord:
        """No name stands for anything and every version is a tombstone."""
        versions = tuple(v.buried(at_s, by) for v in self.versions)
        return replace(self, versions=versions, aliases={})

    def retired_version(self, digest: str, at_s: float, by: str) -> AdapterRecord:
        """One version is a tombstone; a canary that it was ends.

        Raises Conflict while an alias stands for it.
        """
        named = sorted(n for n, a in self.aliases.items() if a.digest == digest)
        if named:
            raise Conflict(
                f"{self.model}@{named[0]} stands for {digest[:12]}. Promote another version or roll"
                " back first, or retire the whole adapter.",
                code="version_in_use",
                param="version",
            )
        aliases = {
            n: a.without_canary() if a.canary == digest else a for n, a in self.aliases.items()
        }
        versions = tuple(v.buried(at_s, by) if v.ref.digest == digest else v for v in self.versions)
        return replace(self, versions=versions, aliases=aliases)

    def collected(self, keep: int, at_s: float) -> AdapterRecord:
        """At most `keep` live versions besides those that an alias stands for or would go back to,
        and as many tombstones (`retention.retained`).

        Raises Conflict where more than MAX_CONDEMNED would have to wait for the sweep.
        """
        versions, gone = retained(self.versions, self.named(), keep, at_s)
        condemned = (*self.condemned, *gone)
        if len(condemned) > MAX_CONDEMNED:
            raise Conflict(
                f"{len(condemned)} old versions of {self.model} wait to be removed. Run `loraplex"
                " store sweep`, or publish it less often.",
                code="too_many_versions",
            )
        return replace(self, versions=versions, condemned=condemned)

    def swept(self, digests: frozenset[str]) -> AdapterRecord:
        """The objects of these are removed: what is condemned among them is forgotten."""
        kept = tuple(c for c in self.condemned if c.digest not in digests)
        return replace(self, condemned=kept)

    def named(self) -> frozenset[str]:
        """Digests that an alias stands for, splits to, or would go back to."""
        found: set[str] = set()
        for alias in self.aliases.values():
            found |= {alias.digest, *self._live_history(alias)[-1:]}
            found |= set() if alias.canary is None else {alias.canary}
        return frozenset(found)

    def standing(self) -> list[VersionRecord]:
        """What requests can get by an alias: those that they stand for, and their canaries."""
        digests = {d for a in self.aliases.values() for d in (a.digest, a.canary)}
        return [v for v in self.versions if v.ref.digest in digests]

    def check(self) -> None:
        """Assert that aliases stand for live versions and that nothing grows without bound."""
        live = {v.ref.digest for v in self.versions if v.live}
        assert len({v.ref.digest for v in self.versions}) == len(self.versions)
        assert not {c.digest for c in self.condemned} & {v.ref.digest for v in self.versions}
        assert CANARY not in self.aliases and len(self.aliases) <= MAX_ALIASES
        assert len(self.condemned) <= MAX_CONDEMNED
        for name, alias in self.aliases.items():
            assert check_alias(name) == name
            assert alias.digest in live, (name, alias)
            assert alias.canary is None or alias.canary in live - {alias.digest}, (name, alias)
            assert len(alias.history) <= MAX_HISTORY and len(alias.ended) <= MAX_ENDED

    def _alias(self, name: str) -> Alias:
        alias = self.aliases.get(name)
        if alias is None:
            known = ", ".join(sorted(self.aliases)) or "none"
            raise NotFound(f"{self.model} has no alias {name[:80]!r}; it has: {known}.", param="as")
        return alias

    def _with_alias(self, name: str, alias: Alias) -> AdapterRecord:
        return replace(self, aliases={**self.aliases, name: alias})

    def _live_history(self, alias: Alias) -> tuple[str, ...]:
        live = {v.ref.digest for v in self.versions if v.live}
        return tuple(d for d in alias.history if d in live and d != alias.digest)

    # On the wire ----------------------------------------------------------------------------------
    def to_value(self) -> dict[str, Any]:
        return {
            "v": ADAPTER_VERSION,
            "tenant": self.tenant,
            "name": self.name,
            "aliases": {name: alias.to_value() for name, alias in self.aliases.items()},
            "versions": [version.to_value() for version in self.versions],
            "condemned": [[c.digest, c.retired_s] for c in self.condemned],
        }

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> AdapterRecord:
        known = known_fields(cls, value, ADAPTER_VERSION)
        return cls(
            tenant=known["tenant"],
            name=known["name"],
            versions=tuple(VersionRecord.from_value(v) for v in known["versions"]),
            aliases={n: Alias.from_value(a) for n, a in known["aliases"].items()},
            condemned=tuple(Condemned(digest, at_s) for digest, at_s in known["condemned"]),
        )

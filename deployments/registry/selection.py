"""Which version of an adapter `name@selector` means: an alias, or a digest's beginning. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from deployments.registry.alias import CANARY, PRODUCTION, Alias, is_digest
from deployments.registry.version_record import VersionRecord


def select(
    versions: Iterable[VersionRecord],
    aliases: Mapping[str, Alias],
    selector: str | None,
    at: Callable[[], float],
) -> VersionRecord | None:
    """The live version that is meant, None: none, or more than one. selector None: the bare name.

    at  where in [0, 1) the asker stands; called only where an alias has a canary
    """
    if selector is not None and is_digest(selector):
        found = [v for v in versions if v.live and v.ref.digest.startswith(selector)]
        return found[0] if len(found) == 1 else None
    alias = aliases.get(PRODUCTION if selector in (None, CANARY) else str(selector))
    if alias is None:
        return None
    digest = alias.canary if selector == CANARY else alias.pick(at)
    return next((v for v in versions if v.live and v.ref.digest == digest), None)


def tombstones(
    versions: Iterable[VersionRecord], selector: str | None = None
) -> list[VersionRecord]:
    """Retired ones: all, or those that the beginning of a digest means where no live one begins
    so."""
    begin = selector or ""
    found = [v for v in versions if v.ref.digest.startswith(begin)]
    if selector is not None and (not is_digest(begin) or any(v.live for v in found)):
        return []
    return [v for v in found if not v.live]

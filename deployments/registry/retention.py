"""Which versions of an adapter stay when new ones come. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deployments.registry.version_record import Condemned, VersionRecord

COLLECTED = "keep_versions"
"""Who retired a version that nothing named any more."""


def retained(
    versions: Sequence[VersionRecord], named: Collection[str], keep: int, at_s: float
) -> tuple[tuple[VersionRecord, ...], tuple[Condemned, ...]]:
    """Of `versions`, oldest first: the newest `keep` live ones besides those whose digest is
    `named`, older ones as tombstones, and the newest `keep` tombstones. And what of the others the
    sweep must still know."""
    spare = [v.ref.digest for v in versions if v.live and v.ref.digest not in named]
    old = set(spare[: max(0, len(spare) - keep)])
    left = [v.buried(at_s, COLLECTED) if v.ref.digest in old else v for v in versions]
    dead = sorted((v for v in left if not v.live), key=lambda v: v.buried_s)
    gone = dead[: max(0, len(dead) - keep)]
    condemned = tuple(Condemned(v.ref.digest, v.buried_s) for v in gone)
    return tuple(v for v in left if v not in gone), condemned

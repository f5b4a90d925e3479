"""What the object store itself says of a version, beside its bytes: enough to make a registry anew.

One small object for each name that a version was published under. It takes no part in the digest.
Changes of aliases are noted once the registry has them, so after a crash these notes may be a step
behind; the registry is what is served by.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from deployments.registry.version_record import VersionRecord
from engine.adapters.store import ObjectMissing, ObjectStore, object_prefix
from engine.errors import LoraplexError

logger = logging.getLogger(__name__)
SIDECAR_VERSION = 1


@dataclass(frozen=True, slots=True)
class Sidecar:
    """version     as published
    stored_s    when its bytes were put last, or were about to be
    promoted_s  when production of its name began to stand for it last; None: never
    """

    version: VersionRecord
    stored_s: float
    promoted_s: float | None = None

    def to_bytes(self) -> bytes:
        value = {
            "v": SIDECAR_VERSION,
            "stored_s": self.stored_s,
            "promoted_s": self.promoted_s,
            "version": self.version.to_value(),
        }
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Sidecar:
        """Raises ValueError for anything else."""
        try:
            value: dict[str, Any] = json.loads(data)
            if value["v"] != SIDECAR_VERSION:
                raise ValueError(f"sidecar version {value['v']} is not {SIDECAR_VERSION}")
            version = VersionRecord.from_value(value["version"])
            return cls(version, value["stored_s"], value["promoted_s"])
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no sidecar ({error!r})") from error


class Sidecars:
    """Blocking. Raises AdapterUnavailable where it says so."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, sidecar: Sidecar) -> None:
        """Raises AdapterUnavailable."""
        self._store.put(_key(sidecar.version), sidecar.to_bytes())

    def note_stored(self, version: VersionRecord, at_s: float) -> None:
        """Its bytes are about to be put. Raises AdapterUnavailable."""
        before = self._read(_key(version)) or Sidecar(version, at_s)
        self.put(replace(before, version=version, stored_s=at_s))

    def note_promoted(self, version: VersionRecord, at_s: float) -> None:
        """Production of its name stands for it since then. What the store refuses is logged."""
        try:
            before = self._read(_key(version)) or Sidecar(version, at_s)
            self.put(replace(before, version=version, promoted_s=at_s))
        except LoraplexError as error:
            logger.warning("%s: its sidecar is behind: %s", version.ref.key, error.message)

    def remove(self, version: VersionRecord) -> None:
        """The version is retired under its name. What the store refuses is logged."""
        try:
            self._store.delete(_key(version))
        except LoraplexError as error:
            logger.warning("%s: its sidecar stays: %s", version.ref.key, error.message)

    def of(self, prefix: str) -> Iterator[Sidecar]:
        """Those of the version under `prefix`; one that can't be read is logged and left out.

        Raises AdapterUnavailable.
        """
        for key in self._store.list(f"{prefix}/record."):
            if (sidecar := self._read(key)) is not None:
                yield sidecar

    def _read(self, key: str) -> Sidecar | None:
        try:
            return Sidecar.from_bytes(b"".join(self._store.read(key)))
        except ObjectMissing:
            return None
        except ValueError as error:
            logger.warning("%s can't be read: %s", key, error)
            return None


def _key(version: VersionRecord) -> str:
    return f"{object_prefix(version.ref.tenant, version.ref.digest)}/record.{version.ref.name}.json"

"""Versions that were retired: their copies go as soon as nobody uses them. Standard library only.

A mark is kept for `MARK_S` after the order, since requests of an ingress that hasn't heard of it
yet still come, and as long as the version is in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.adapters.version import Version
from engine.errors import ErrorInfo, NotFound
from engine.messages import Drop
from engine.types import AdapterRef

MARK_S = 5.0
"""More than twice what an ingress takes to hear of it."""


@dataclass(slots=True)
class _Mark:
    ref: AdapterRef
    until_s: float
    refuses: bool
    is_gone: bool = False


class Retired:
    """The marks, by `ref.key`."""

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def add(self, drop: Drop, now: float) -> None:
        self._marks[drop.ref.key] = _Mark(drop.ref, now + MARK_S, drop.now)

    def forget(self, key: str) -> None:
        """It was published again."""
        self._marks.pop(key, None)

    def error(self, ref: AdapterRef, now: float) -> ErrorInfo | None:
        """What requests for a version are told that was retired at once."""
        mark = self._marks.get(ref.key)
        if mark is None or not mark.refuses or now >= mark.until_s:
            return None
        return retired_now(ref)

    def leaving(self, versions: Mapping[str, Version], now: float) -> Iterator[AdapterRef]:
        """Retired versions that nobody uses, again for each time that a late request brought one
        back. The caller drops what it can of each as it comes; of one that is gone, the disk's
        copy, which is then asked for by a `yield` of its own."""
        for key, mark in list(self._marks.items()):
            version = versions.get(key)
            if version is not None:
                mark.is_gone = False
                if version.is_unused:
                    yield mark.ref
            if key not in versions and not mark.is_gone:
                mark.is_gone = True
                yield mark.ref
            # In the same turn as it went: whoever publishes it again has it back for good.
            if mark.is_gone and now >= mark.until_s:
                del self._marks[key]


def retired_now(ref: AdapterRef) -> ErrorInfo:
    message = (
        f"Adapter {ref.ring_key} was retired, and its requests with it. Name another version, or"
        " publish it again."
    )
    return NotFound(message, code="adapter_retired").info()

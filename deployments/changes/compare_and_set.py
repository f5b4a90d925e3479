"""A value of the registry, changed as it is when it is written: of two at once none is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from deployments.registry.registry import ABSENT, Registry
from engine.errors import Conflict

MAX_ATTEMPTS = 8
Record = TypeVar("Record")
Value = Mapping[str, Any]


def update(
    registry: Registry,
    key: str,
    read: Callable[[Value], Record],
    write: Callable[[Record], Value],
    change: Callable[[Record | None], Record],
    who: str,
) -> tuple[Record | None, Record]:
    """The record before (None: there was none) and after. Blocking.

    change  may be called again, where others write at the same time; what it raises goes on
    who     keeps changing, in the words of an error

    Raises Conflict after `MAX_ATTEMPTS`.
    """
    for _ in range(MAX_ATTEMPTS):
        entry = registry.get(key)
        before = None if entry is None else read(entry.value)
        after = change(before)
        if after == before:
            # Perhaps the write of somebody who was told that it is unconfirmed.
            registry.confirm()
            return before, after
        try:
            registry.put(key, write(after), ABSENT if entry is None else entry.rev)
        except Conflict:
            continue
        return before, after
    raise Conflict(f"{who} keeps changing. Try again.")

"""Records of earlier releases as this one writes them. Pure: a stored value in, a value out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.registry.alias import MAX_HISTORY, PRODUCTION

ADAPTER_VERSION = 2
"""Of an adapter's record."""


def upgraded(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record of version 1 as one of version 2; any other as it is.

    In version 1 a name stood for its newest version, so what it can go back to are those before.
    """
    if value.get("v") != 1:
        return value
    current, versions = value["current"], value["versions"]
    live = [v["ref"]["digest"] for v in versions if v["retired_s"] is None]
    history = [d for d in live if d != current][-MAX_HISTORY:]
    alias = {"digest": current, "canary": None, "weight": 0.0, "history": history}
    return {
        "v": ADAPTER_VERSION,
        "tenant": value["tenant"],
        "name": value["name"],
        "aliases": {} if current is None else {PRODUCTION: alias},
        "versions": versions,
        "condemned": [],
    }

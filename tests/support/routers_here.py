"""The routers of this process, by the name of the deployment that they route to: Serve makes them,
and hands them to nobody."""

from __future__ import annotations

from typing import Any

ROUTERS: dict[str, Any] = {}
"""`KnownRouter`s."""

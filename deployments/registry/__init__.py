"""Who may use what: tenants, keys and adapter versions, behind one small interface."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from deployments.registry.registry import Registry
from deployments.registry.sqlite import SqliteRegistry
from engine.errors import LoraplexError


def open_registry(url: str) -> Registry:
    """Open the registry that `url` names: `sqlite:///absolute/path` (made if it isn't there).

    Raises LoraplexError for a scheme that this release can't serve.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        if parts.netloc or not parts.path.startswith("/"):
            raise LoraplexError(
                f"registry url {url!r} is not an absolute path. Write sqlite:///path/to/file."
            )
        return SqliteRegistry(unquote(parts.path))
    if parts.scheme in ("redis", "rediss"):
        raise LoraplexError(
            "This release has no Redis registry yet. Use sqlite:///path/to/file, on one host."
        )
    raise LoraplexError(f"registry url {url!r} has no known scheme. Use sqlite:///path/to/file.")

"""Who may use what: tenants, keys and adapter versions, behind one small interface."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from deployments.registry import redis_url
from deployments.registry.registry import Registry
from deployments.registry.sqlite import SqliteRegistry
from engine.errors import LoraplexError


def open_registry(url: str) -> Registry:
    """Open the registry that `url` names, migrating what an earlier release left there.

    sqlite:///absolute/path    a file of this host, made if it isn't there
    redis://..., rediss://..., redis+sentinel://...    see `redis_url`

    Raises LoraplexError for a URL that says something else, Unavailable.
    """
    parts = urlsplit(url)
    if parts.scheme in redis_url.SCHEMES:
        # Its client is of no use to a service on SQLite, nor to a replica.
        from deployments.registry.redis_registry import RedisRegistry  # noqa: PLC0415

        return RedisRegistry(redis_url.RedisSettings.parse(url))
    if parts.scheme != "sqlite":
        raise LoraplexError(
            f"registry url {redis_url.without_secrets(url)!r} has no known scheme. Write"
            f" sqlite:///path/to/file, {redis_url.EXAMPLES}."
        )
    if parts.netloc or not parts.path.startswith("/"):
        raise LoraplexError(
            f"registry url {url!r} is not an absolute path. Write sqlite:///path/to/file."
        )
    return SqliteRegistry(unquote(parts.path))

"""What a Redis registry's URL says.

redis://[user:password@]host[:6379][/db]                          one server
redis+sentinel://[user:password@]host[:26379],host.../service[/db]  the master that Sentinels name
rediss://, rediss+sentinel://                                     the same over verified TLS

User and password are the server's ACL user; parts are percent-encoded. Options, as a query:

ca_file            PEM of the authorities to trust; the system's otherwise
cert_file, key_file  this client's certificate, where the server asks for one
sentinel_username, sentinel_password  for the Sentinels themselves
prefix             of all keys, `{prefix}:...`: several registries can share a database ("loraplex")
replicas           replicas that must confirm a write: a number, or "auto": one where there are any
confirm_s          how long a write waits for them (1)
timeout_s          how long a command may take, and a connection (2)
max_connections    of one process (8)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from engine.errors import LoraplexError

SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
EXAMPLES = "redis://host:6379/0 or redis+sentinel://host:26379,host:26379/service"
_NODE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,63}")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """service   what the Sentinels at `nodes` call the master; None: `nodes` is the one server
    replicas  that must confirm a write; None: one where there are any"""

    nodes: tuple[tuple[str, int], ...]
    service: str | None = None
    db: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    prefix: str = "loraplex"
    replicas: int | None = None
    confirm_s: float = 1.0
    timeout_s: float = 2.0
    max_connections: int = 8

    @classmethod
    def parse(cls, url: str) -> RedisSettings:
        """Raises LoraplexError, which never repeats a password."""
        try:
            return cls(**_parse(url))
        except ValueError as error:
            raise LoraplexError(
                f"registry url {without_secrets(url)!r}: {error}. Write {EXAMPLES}."
            ) from None

    @property
    def where(self) -> str:
        """For messages."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.nodes)
        if self.service is None:
            return f"{hosts}/{self.db}"
        return f"{hosts}/{self.service}/{self.db}"


def with_credentials(
    url: str,
    *,
    username: str | None = None,
    password: str | None = None,
    sentinel_password: str | None = None,
) -> str:
    """A Redis `url` with what it doesn't say itself; any other as it is."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        return url
    user, _, hosts = parts.netloc.rpartition("@")
    name, _, secret = user.partition(":")
    name = name or quote(username or "", safe="")
    secret = secret or quote(password or "", safe="")
    netloc = f"{name}:{secret}@{hosts}" if secret else parts.netloc
    query = parts.query
    if sentinel_password and "sentinel" in parts.scheme and "sentinel_password=" not in query:
        query += ("&" if query else "") + f"sentinel_password={quote(sentinel_password, safe='')}"
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def without_secrets(url: str) -> str:
    """`url` for a message."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    query = re.sub(r"(password=)[^&]*", r"\1***", parts.query)
    return urlunsplit(parts._replace(netloc=f"{name}:***@{hosts}" if at else hosts, query=query))


def _parse(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"{parts.scheme!r} is no scheme of Redis")
    sentinel = parts.scheme.endswith("+sentinel")
    user, _, hosts = parts.netloc.rpartition("@")
    name, _, secret = user.partition(":")
    path = [unquote(p) for p in parts.path.split("/")[1:] if p]
    values: dict[str, Any] = {
        "nodes": tuple(_node(host, 26379 if sentinel else 6379) for host in hosts.split(",")),
        "tls": parts.scheme.startswith("rediss"),
        "username": unquote(name) or None,
        "password": unquote(secret) or None,
        **_options(parts.query),
    }
    if sentinel:
        if not path:
            raise ValueError("it names no service after the Sentinels")
        values["service"] = path.pop(0)
    elif len(values["nodes"]) > 1:
        raise ValueError("several hosts are Sentinels: redis+sentinel://")
    if len(path) > 1 or (path and not path[0].isdecimal()):
        raise ValueError("its path must end with the number of a database")
    values["db"] = int(path[0]) if path else 0
    for option in ("ca_file", "cert_file", "key_file"):
        if option in values and not values["tls"]:
            raise ValueError(f"{option} needs TLS, rediss://")
    return values


def _node(text: str, default_port: int) -> tuple[str, int]:
    found = _NODE.fullmatch(text)
    if found is None or int(found[2] or default_port) > 65535:
        raise ValueError(f"{text!r} is not HOST or HOST:PORT")
    return found[1].strip("[]"), int(found[2] or default_port)


def _options(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)):
        if name not in _OPTIONS:
            raise ValueError(f"{name!r} is no option; there are {', '.join(_OPTIONS)}")
        if name in values:
            raise ValueError(f"{name} is given twice")
        try:
            values[name] = _OPTIONS[name](text)
        except ValueError:
            shown = "its value" if "password" in name else repr(text)
            raise ValueError(f"{name} can't be {shown}") from None
    return values


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60:
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise ValueError
    return value


def _replicas(text: str) -> int | None:
    if text == "auto":
        return None
    return 0 if text == "0" else _count(text)


def _text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _prefix(text: str) -> str:
    if _PREFIX.fullmatch(text) is None:
        raise ValueError
    return text


_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "ca_file": _text,
    "cert_file": _text,
    "key_file": _text,
    "sentinel_username": _text,
    "sentinel_password": _text,
    "prefix": _prefix,
    "replicas": _replicas,
    "confirm_s": _seconds,
    "timeout_s": _seconds,
    "max_connections": _count,
}

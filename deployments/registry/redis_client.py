"""Connections to the Redis master, and what their failures mean.

Connections are few and pooled; every wait on one has an end. A call on a connection that turns out
to be broken, or to lead to a former master, is made once more on a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
)
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from deployments.registry.redis_url import RedisSettings
from engine.errors import RegistryUnavailable

T = TypeVar("T")

OLDEST_SERVER = (7, 0)
HEALTH_CHECK_S = 15
ACL = "~{loraplex}:* +@read +@write +@connection +eval +info +time +wait"
"""What the user needs, as ACL SETUSER takes it; `loraplex` is the URL's prefix."""
RETRY_AFTER_S = 2.0
_REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)
_Meaning = tuple[str, str]
"""Code and remedy."""
_OTHER: _Meaning = (
    "registry_unavailable",
    "See that it runs and can be reached, its TLS settings and its log.",
)
_KINDS: dict[type[Exception], _Meaning] = {
    NoPermissionError: (
        "registry_refused",
        f"Its user needs {ACL}.",
    ),
    AuthenticationError: (
        "registry_refused",
        "Check the user and the password, in its URL or the environment.",
    ),
    TimeoutError: (
        "registry_slow",
        "If this was a write it may have been made: look before trying again.",
    ),
    MasterNotFoundError: (
        "registry_unavailable",
        "Its Sentinels name no master: try again, or see to them.",
    ),
    BusyLoadingError: ("registry_unavailable", "It is loading its data: try again."),
    OutOfMemoryError: (
        "registry_full",
        "Its memory is full: raise maxmemory, or remove what others keep there.",
    ),
    ReadOnlyError: (
        "registry_read_only",
        "It is a replica: name the master, or its Sentinels with redis+sentinel://.",
    ),
}
_KNOWN: dict[str, _Meaning] = {
    "OOM": _KINDS[OutOfMemoryError],
    "READONLY": _KINDS[ReadOnlyError],
    "NOAUTH": _KINDS[AuthenticationError],
    "MISCONF": ("registry_full", "It can't save to its disk: make room there."),
    "NOREPLICAS": ("registry_unavailable", "It wants more replicas: see to those, or to the rule."),
    "MOVED": (
        "registry_unavailable",
        "It is a cluster's node without our slot: name the node that has it.",
    ),
    "CLUSTERDOWN": ("registry_unavailable", "The cluster is down: see to its nodes."),
}
"""By the first word of a server's answer."""


class RedisClient:
    """Safe to use from several threads. Errors of a server come out as Unavailable."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self._slots = threading.BoundedSemaphore(settings.max_connections)
        self._sentinel, self._redis = _connect(settings)

    def call(self, work: Callable[[redis.Redis, bool], T]) -> T:
        """`work(connection, again)`, on one connection from start to end. `again`: a first try may
        have been executed although nobody read its answer."""
        if not self._slots.acquire(timeout=self.settings.timeout_s):
            raise RegistryUnavailable(
                f"All {self.settings.max_connections} connections to the registry are busy."
                " Try again; if it lasts, raise max_connections in its URL.",
                code="registry_busy",
                retry_after_s=RETRY_AFTER_S,
            )
        try:
            return self._call(work)
        except (RedisError, OSError) as error:
            raise self.explain(error) from error
        finally:
            self._slots.release()

    def explain(self, error: Exception) -> RegistryUnavailable:
        """What an operator can do about it."""
        code, remedy = _meaning(error, self.settings)
        return RegistryUnavailable(
            f"The registry at {self.settings.where} can't be used: {_told(error)}. {remedy}",
            code=code,
            retry_after_s=RETRY_AFTER_S,
        )

    def close(self) -> None:
        self._redis.close()
        self._redis.connection_pool.disconnect()
        if self._sentinel is not None:
            self._sentinel.close()

    def _call(self, work: Callable[[redis.Redis, bool], T]) -> T:
        try:
            with self._connection() as connection:
                return work(connection, False)
        except (*_REFUSED, BusyLoadingError):
            raise
        except (ConnectionError, ReadOnlyError):
            # The idle ones are likely no better.
            self._redis.connection_pool.disconnect(inuse_connections=False)
        with self._connection() as connection:
            return work(connection, True)

    @contextmanager
    def _connection(self) -> Iterator[redis.Redis]:
        connection: redis.Redis = self._redis.client()  # type: ignore[no-untyped-call]
        try:
            yield connection
        finally:
            connection.close()


def check_server(connection: redis.Redis, settings: RedisSettings) -> None:
    """Raises Unavailable for a server that would lose records or lacks what the scripts use."""
    server: Any = connection.info("server")
    version = str(server.get("redis_version", ""))
    if tuple(int(p) for p in version.split(".")[:2] if p.isdecimal()) < OLDEST_SERVER:
        raise RegistryUnavailable(
            f"The registry at {settings.where} is Redis {version}. It needs 7.0 or later."
        )
    memory: Any = connection.info("memory")
    policy = str(memory.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        raise RegistryUnavailable(
            f"The registry at {settings.where} would drop records when its memory is full"
            f" (maxmemory-policy {policy}). Set maxmemory-policy noeviction."
        )


def run(
    connection: redis.Redis, script: str, keys: Sequence[str], *args: str | bytes | int
) -> list[Any]:
    # The whole script, not its digest: nothing to load again on a server that just took over.
    reply: Any = connection.eval(script, len(keys), *keys, *args)
    return list(reply)


def _connect(settings: RedisSettings) -> tuple[Sentinel | None, redis.Redis]:
    common: dict[str, Any] = {
        # Also how long an answer of WAIT may take.
        "socket_timeout": settings.timeout_s + settings.confirm_s,
        "socket_connect_timeout": settings.timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": True,
    }
    if settings.tls:
        common |= {
            "ssl": True,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_certs": settings.ca_file,
            "ssl_certfile": settings.cert_file,
            "ssl_keyfile": settings.key_file,
        }
    server = {
        **common,
        "db": settings.db,
        "username": settings.username,
        "password": settings.password,
        "health_check_interval": HEALTH_CHECK_S,
    }
    if settings.service is None:
        host, port = settings.nodes[0]
        return None, redis.Redis(host=host, port=port, **server)
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        settings.nodes,
        sentinel_kwargs={
            **common,
            "username": settings.sentinel_username,
            "password": settings.sentinel_password,
        },
        **server,
    )
    master = sentinel.master_for(settings.service)  # type: ignore[no-untyped-call]
    return sentinel, master


def _meaning(error: Exception, settings: RedisSettings) -> tuple[str, str]:
    """(code, remedy)."""
    for kind, meaning in _KINDS.items():
        if isinstance(error, kind):
            code, remedy = meaning
            break
    else:
        # A server's error begins with a word in capitals.
        code, remedy = _KNOWN.get(str(error).split(" ", 1)[0], _OTHER)
        if "DB index" in str(error):
            code, remedy = "registry_refused", "Name a database that it has, at the URL's end."
    return code, remedy.replace("{loraplex}", f"{{{settings.prefix}}}")


def _told(error: Exception) -> str:
    """In one sentence: what follows ours is the remedy."""
    said = (str(error) or type(error).__name__).rstrip(".")
    return said.replace(". ", ": ")[:300]

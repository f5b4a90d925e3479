"""Where `loraplex doctor` looks at the registry and at the object store.

What is written (a probe record, a probe object) is removed again, a registry of an earlier release
is not migrated, a file is not made, and nothing waits for long.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from deployments.config import AppConfig
from deployments.doctor.backends import RedisFacts, RegistryFacts, StoreFacts
from deployments.doctor.probes import written_folder
from deployments.registry import open_registry, redis_url
from deployments.registry.records import KEYS, KeyRecord, Role, hash_key
from deployments.registry.registry import ABSENT, Registry
from deployments.registry.schema import SCHEMA
from engine.adapters.folder_store import FolderStore
from engine.adapters.s3_address import S3Address
from engine.adapters.store import ObjectStore, open_store
from engine.config import StoreOptions
from engine.errors import LoraplexError

PROBE = b"loraplex doctor"


def look_at_registry(url: str, admin_key: str, word: str) -> RegistryFacts:
    """word: what nobody else's probe is called."""
    facts = RegistryFacts(redis_url.without_secrets(url))
    try:
        scheme = urlsplit(url).scheme
        if scheme in redis_url.SCHEMES:
            facts = _redis(url, facts)
        elif scheme != "sqlite":
            open_registry(url).close()  # says which there are
        else:
            facts = replace(facts, schema=_sqlite_schema(Path(unquote(urlsplit(url).path))))
        if facts.problem or facts.schema != SCHEMA.version:
            return facts
        opened = open_registry(url)
        try:
            return _tried(opened, facts, admin_key, word)
        finally:
            opened.close()
    except (LoraplexError, OSError, sqlite3.Error) as error:
        return replace(facts, problem=str(getattr(error, "message", error)))


def _tried(opened: Registry, facts: RegistryFacts, admin_key: str, word: str) -> RegistryFacts:
    records = [KeyRecord.from_value(entry.value) for entry in opened.list(KEYS).entries]
    good = {r.sha256 for r in records if r.role == Role.ADMIN and r.revoked_s is None}
    facts = replace(
        facts,
        num_admin_keys=len(good),
        key_is_good=hash_key(admin_key) in good if admin_key else None,
    )
    key, value = f"doctor/{word}", {"v": 1}
    try:
        opened.put(key, value, ABSENT)
        try:
            entry = opened.get(key)
            assert entry is not None and entry.value == value
        finally:
            opened.delete(key, None)
    except LoraplexError as error:
        return replace(facts, write_problem=error.message)
    return facts


def _sqlite_schema(path: Path) -> int | None:
    """None where there is no file yet. Raises sqlite3.Error, and OSError where none can be made."""
    if not path.exists():
        folder = written_folder(path.parent)
        if folder.problem:
            raise OSError(f"{folder.problem}. Name a folder of ours to write: data_dir.")
        return None
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
    try:
        return int(database.execute("PRAGMA user_version").fetchone()[0]) or None
    finally:
        database.close()


def _redis(url: str, facts: RegistryFacts) -> RegistryFacts:
    # Its client is of no use to a service on SQLite.
    from deployments.registry.redis_client import RedisClient, check_server  # noqa: PLC0415

    settings = redis_url.RedisSettings.parse(url)
    client = RedisClient(settings)
    try:
        info: dict[str, Any] = client.call(lambda connection, _: dict(connection.info()))
        facts = replace(facts, redis=_redis_facts(info, settings.replicas))
        client.call(lambda connection, _: check_server(connection, settings))
        state = f"{{{settings.prefix}}}:state"
        schema: Any = client.call(lambda connection, _: connection.hget(state, "schema"))
        # An empty one is made here: whether it can be written shows only by writing.
        return replace(facts, schema=SCHEMA.version if schema is None else int(schema))
    except LoraplexError as error:
        return replace(facts, problem=error.message)
    finally:
        client.close()


def _redis_facts(info: dict[str, Any], wanted: int | None) -> RedisFacts:
    replicas = [v for k, v in info.items() if re.fullmatch(r"slave\d+", k)]
    return RedisFacts(
        version=str(info["redis_version"]),
        role=str(info["role"]),
        policy=str(info["maxmemory_policy"]),
        max_bytes=int(info["maxmemory"]),
        used_bytes=int(info["used_memory"]),
        num_replicas=sum(replica.get("state") == "online" for replica in replicas),
        wanted_replicas=wanted,
        append_only=bool(info["aof_enabled"]),
        append_works=info.get("aof_last_write_status", "ok") == "ok",
        snapshots=info.get("rdb_last_bgsave_status", "ok") == "ok",
    )


def look_at_store(config: AppConfig, now: Callable[[], datetime], word: str) -> StoreFacts:
    """Where uploads go: a sweep would remove a probe that is left there."""
    options = replace(config.store_options, deadline_s=10.0, max_attempts=2)
    shown = urlsplit(config.store_url)._replace(query="").geturl()
    try:
        with _opened(config, options) as opened:
            facts = _probed(opened, shown, word)
    except (LoraplexError, OSError) as error:
        return StoreFacts(shown, open_problem=str(getattr(error, "message", error)))
    return replace(facts, skew_s=_skew_s(config.store_url, now))


@contextmanager
def _opened(config: AppConfig, options: StoreOptions) -> Iterator[ObjectStore]:
    """A folder is a store once a service has opened it. Before that a folder of its own is tried,
    where the store is to be: a store's, once made, could not be removed from under a service that
    has just found it."""
    if not config.store_url.startswith("file:"):
        yield open_store(config.store_url, options)
        return
    root = Path(unquote(urlsplit(config.store_url).path))
    folder = written_folder(root)
    if folder.problem:
        raise OSError(f"{folder.problem}. Name a folder of ours to write: store, or data_dir.")
    if FolderStore.is_made(root):
        yield open_store(config.store_url, options)
        return
    there = next(p for p in (root, *root.parents) if p.exists())
    with TemporaryDirectory(prefix=".doctor-", dir=there) as trial:
        yield open_store(Path(trial).absolute().as_uri(), options)


def _probed(opened: ObjectStore, url: str, word: str) -> StoreFacts:
    key = f"uploads/doctor/{word}"

    def problem(step: Callable[[], str]) -> str:
        try:
            return step()
        except LoraplexError as error:
            return error.message

    def put() -> str:
        opened.put(key, PROBE)
        return ""

    def get() -> str:
        same = b"".join(opened.read(key)) == PROBE
        return "" if same else "It gave other bytes than it was given. Look at what lies between."

    def listed() -> str:
        return "" if key in opened.list(key) else "It does not list what was put. Look at its log."

    def delete() -> str:
        opened.delete(key)
        return ""

    if said := problem(put):
        return StoreFacts(url, put_problem=said)
    return StoreFacts(
        url,
        get_problem=problem(get),
        list_problem=problem(listed),
        delete_problem=problem(delete),
    )


def _skew_s(url: str, now: Callable[[], datetime]) -> float | None:
    """By the Date of an answer, whichever it is."""
    if not url.startswith("s3:"):
        return None
    address = S3Address.parse(url)
    region = f".{address.region}" if address.region else ""
    try:
        answer = httpx.head(address.endpoint or f"https://s3{region}.amazonaws.com", timeout=5)
        return (parsedate_to_datetime(answer.headers["date"]) - now()).total_seconds()
    except (httpx.HTTPError, KeyError, ValueError):
        return None

"""A registry in a file, whatever backend it came from and goes to: one JSON object a line.

First what the file is, then every entry by its key, last how many there are and the sha256 of all
lines before. It holds hashes of API keys, no keys; and no adapters, which lie in the object store.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deployments.registry.registry import Gone, Registry
from deployments.registry.schema import SCHEMA, Schema
from engine.errors import Conflict, InvalidRequest, Unavailable

FORMAT = 1
MAX_ATTEMPTS = 5


def back_up(
    registry: Registry, path: Path, *, clock: Callable[[], float], replace: bool = False
) -> int:
    """Write all that `registry` holds at one moment to `path`, readable by its owner alone; answers
    how many entries. With `replace` a file that is there goes once the new one is whole.

    Raises Conflict where there is a file and no `replace`, InvalidRequest where none can be made.
    """
    if not path.parent.is_dir():
        raise InvalidRequest(f"There is no folder {path.parent}. Make it first.")
    if path.exists() and not replace:
        raise Conflict(f"{path} is there already. Name another file, or give --replace.")
    entries, rev = _snapshot(registry)
    header = {
        "loraplex": "registry",
        "format": FORMAT,
        "schema": SCHEMA.version,
        "rev": rev,
        "written_s": clock(),
    }
    try:
        _write(path, header, entries)
    except OSError as error:
        raise InvalidRequest(f"{path} can't be written: {error.strerror}.") from error
    return len(entries)


def _write(path: Path, header: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Whole, or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            lines = ({"key": key, "value": entries[key]} for key in sorted(entries))
            for line in (header, *lines):
                text = json.dumps(line, allow_nan=False).encode() + b"\n"
                digest.update(text)
                file.write(text)
            end = {"entries": len(entries), "sha256": digest.hexdigest()}
            file.write(json.dumps(end).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def bring_back(
    registry: Registry, path: Path, *, replace: bool = False, schema: Schema = SCHEMA
) -> int:
    """Put a backup, of this release or an earlier one, into `registry` in one step; answers how
    many entries.

    Raises InvalidRequest for a file that isn't a whole backup, before anything is changed; Conflict
    where the registry has entries, unless `replace`.
    """
    values = _read(path, schema)
    if not replace and registry.list("", limit=1).entries:
        raise Conflict("The registry isn't empty. --replace puts the backup in its place.")
    registry.restore(values.items())
    return len(values)


def _snapshot(registry: Registry) -> tuple[Mapping[str, Mapping[str, Any]], int]:
    """A listing may be of several moments; what changed meanwhile makes it one of a single one."""
    for _ in range(MAX_ATTEMPTS):
        listing = registry.list("")
        changes = registry.changes(listing.rev)
        if isinstance(changes, Gone):
            continue
        entries = {e.key: e.value for e in listing.entries}
        for event in changes.events:
            if event.value is None:
                entries.pop(event.key, None)
            else:
                entries[event.key] = event.value
        return entries, changes.rev
    raise Unavailable("The registry changes faster than it can be read. Try again.")


def _read(path: Path, schema: Schema) -> dict[str, Mapping[str, Any]]:
    try:
        values, found = _parse(path)
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{path} is not a whole backup of a registry: {error}.") from error
    schema.accept(found, str(path))
    return {key: schema.migrated(key, value, found) for key, value in values.items()}


def _parse(path: Path) -> tuple[dict[str, Mapping[str, Any]], int]:
    """The entries and their schema. Raises ValueError and what wrong shapes raise."""
    digest = hashlib.sha256()
    values: dict[str, Mapping[str, Any]] = {}
    lines = _lines(path)
    first = next(lines, b"")
    header = json.loads(first)
    if header["loraplex"] != "registry" or header["format"] != FORMAT:
        raise ValueError("it says that it is something else")
    digest.update(first)
    last = next(lines, b"")
    for line in lines:
        entry = json.loads(last)
        if entry["key"] in values:
            raise ValueError(f"{entry['key']} is there twice")
        values[str(entry["key"])] = dict(entry["value"])
        digest.update(last)
        last = line
    end = json.loads(last)
    if end["entries"] != len(values) or end["sha256"] != digest.hexdigest():
        raise ValueError("it was cut or changed")
    return values, int(header["schema"])


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file

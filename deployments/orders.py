"""What somebody wants published: plain values that an ingress sends to control."""

from __future__ import annotations

from dataclasses import dataclass

from engine.adapters.store import SEGMENT

UPLOADS = "uploads"


@dataclass(frozen=True, slots=True)
class Source:
    """Exactly one of the three.

    folder     below the import root
    own        the folder must be below the tenant's own of that root: its own key asks
    prefix     in the import store, below imports/<tenant>/
    upload     the name of an upload, as `upload_prefix` made it
    """

    folder: str | None = None
    own: bool = False
    prefix: str | None = None
    upload: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be published.

    base  the caller's word that the adapter belongs to this base, whatever its config says
    by    who asks, for the record
    """

    tenant: str
    name: str
    source: Source
    by: str
    base: str | None = None


def upload_prefix(tenant: str, upload: str) -> str:
    """Where an upload lies in the object store, `upload` being `<Unix seconds>-<a word>`. Raises
    ValueError for what is no such name."""
    if not SEGMENT.fullmatch(tenant) or not SEGMENT.fullmatch(upload) or "-" not in upload:
        raise ValueError(f"{tenant!r}/{upload!r} names no upload")
    return f"{UPLOADS}/{tenant}/{upload}"

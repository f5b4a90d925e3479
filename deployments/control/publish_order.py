"""What somebody wants published: plain values that an ingress sends to control."""

from __future__ import annotations

from dataclasses import dataclass

from engine.adapters.store import SEGMENT, TENSORS
from engine.errors import TooLarge

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
class PublishOrder:
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


SMALLER = (
    "Save the adapter with a lower rank or in 16 bits, or have the operator raise"
    " publish.max_upload_bytes."
)


def too_large(file: str, max_bytes: int) -> TooLarge:
    """max_bytes: of a file of that name."""
    remedy = f" {SMALLER}" if file == TENSORS else ""
    return TooLarge(f"{file} is larger than {max_bytes} bytes.{remedy}")

"""Where an S3 store is: `s3://bucket/prefix?endpoint=URL&region=NAME&path_style=true`.

endpoint    of another server than Amazon's
region      else the one of the environment or the profile
path_style  whether the bucket is named in the path and not in the host; true where an endpoint is
            given, unless it says false

Credentials are found as boto3 finds them (environment, profile, role) and are refused here: a URL
ends in logs and records. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from engine.errors import LoraplexError

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"([A-Za-z0-9][A-Za-z0-9._=-]*(/[A-Za-z0-9][A-Za-z0-9._=-]*)*)?")
OPTIONS = ("endpoint", "region", "path_style")
NO_CREDENTIALS = (
    "The store's url has credentials in it, and a url is written to logs. Take them out, and set"
    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role instead."
)


@dataclass(frozen=True, slots=True)
class S3Address:
    """prefix: without '/' at its ends; "" for the whole bucket. None: left to boto3."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @classmethod
    def parse(cls, url: str) -> S3Address:
        """Raises LoraplexError, which repeats nothing of a url that may hold a secret."""
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise _invalid(NO_CREDENTIALS)
        options = _options(parts.query)
        prefix = parts.path.strip("/")
        if not BUCKET.fullmatch(parts.netloc) or not PREFIX.fullmatch(prefix) or parts.fragment:
            raise _invalid("The store's url names no bucket and prefix. Write s3://bucket/prefix.")
        return cls(
            bucket=parts.netloc,
            prefix=prefix,
            endpoint=_endpoint(options.get("endpoint")),
            region=options.get("region"),
            path_style=_path_style(options),
        )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        if re.search(r"key|secret|token|password|credential", name, re.IGNORECASE):
            raise _invalid(NO_CREDENTIALS)
        if name not in OPTIONS:
            known = ", ".join(OPTIONS)
            raise _invalid(f"The store's url has an option {name!r}; s3:// has {known}.")
        if not value:
            raise _invalid(f"The store's url gives no value to {name}. Leave it out, or give one.")
    return options


def _endpoint(endpoint: str | None) -> str | None:
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:
        raise _invalid(NO_CREDENTIALS)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise _invalid(
            "The store's endpoint is no http:// or https:// address. Write endpoint=https://host."
        )
    return endpoint.rstrip("/")


def _path_style(options: dict[str, str]) -> bool | None:
    value = options.get("path_style")
    if value not in (None, "true", "false"):
        raise _invalid("The store's path_style is neither true nor false.")
    if value is None:
        return True if "endpoint" in options else None
    return value == "true"


def _invalid(message: str) -> LoraplexError:
    return LoraplexError(message, code="invalid_store_url")

"""API keys: how they are made, read from a request, and whom they stand for."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable, Set
from dataclasses import dataclass

from engine.errors import PermissionDenied, Unauthenticated
from engine.types import Tenant

KEY_PREFIX = "lp-"
MAX_KEY_CHARS = 256

_SIGNATURE = re.compile(r"(operator )?(lp-\S{4}\.\.\.)")

RandomBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request: a tenant, or (None) an admin. `hint` names the key in records.
    self_publish: a tenant that may change its own adapters. log_content: one whose prompts and
    answers are logged. hints: of all keys that its tenant has or had; not its own to change."""

    tenant: Tenant | None
    hint: str
    self_publish: bool = False
    log_content: bool = False
    hints: Set[str] = frozenset()

    @property
    def is_operator(self) -> bool:
        """Whether it is told where and how things are kept."""
        return self.tenant is None

    @property
    def signature(self) -> str:
        """Whose doing something is, in a record; `shown` shows it."""
        return f"operator {self.hint}" if self.is_operator else self.hint

    def shown(self, text: str) -> str:
        """A record's text with signatures. An admin key's beginning is for operators alone; what
        earlier releases wrote doesn't say whose a key is, so a tenant is shown its own only."""

        def sign(found: re.Match[str]) -> str:
            is_shown = self.is_operator or (not found[1] and found[2] in self.hints)
            return found[2] if is_shown else "an operator"

        return _SIGNATURE.sub(sign, text)

    def as_tenant(self) -> Tenant:
        """Raises PermissionDenied for an admin key."""
        if self.tenant is None:
            raise PermissionDenied("An admin key serves no tenant. Use one of a tenant's keys.")
        return self.tenant

    def as_publisher(self) -> Caller:
        """Raises PermissionDenied for a tenant's key, unless it may change its own adapters."""
        if self.tenant is not None and not self.self_publish:
            raise PermissionDenied(
                "This needs an admin key, or the tenant's flag self_publish: loraplex tenants"
                " change TENANT --self-publish."
            )
        return self

    def as_admin(self) -> Caller:
        """Raises PermissionDenied for a tenant's key."""
        if self.tenant is not None:
            raise PermissionDenied("This needs an admin key.")
        return self


def new_key(random_bytes: RandomBytes = secrets.token_bytes) -> str:
    """A fresh key: `lp-` and 32 random bytes. Shown once; only its sha256 is kept."""
    return KEY_PREFIX + base64.urlsafe_b64encode(random_bytes(32)).rstrip(b"=").decode()


def key_hint(key: str) -> str:
    """Enough of a key to tell it from others, too little to guess it."""
    return f"{key[:7]}..."


def bearer_key(authorization: str | None) -> str:
    """The key in an Authorization header. Raises Unauthenticated."""
    if not authorization:
        raise Unauthenticated(
            "No API key. Send it as 'Authorization: Bearer lp-...'.", code="missing_api_key"
        )
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if scheme.lower() != "bearer" or not key or len(key) > MAX_KEY_CHARS:
        raise Unauthenticated("The Authorization header must read 'Bearer lp-...'.")
    return key


def wrong_key() -> Unauthenticated:
    """The same words for a key that never was and one that was revoked."""
    return Unauthenticated("Incorrect API key. It is unknown or was revoked.")

"""What an alias of an adapter stands for, and what can be one. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.errors import InvalidRequest
from engine.types import NAME

PRODUCTION = "production"
"""The alias that a bare name means."""
CANARY = "canary"
"""Names the canary of `production`; no alias of its own."""
MAX_HISTORY = 20
MAX_ENDED = 10
_DIGEST = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True)
class EndedCanary:
    """A canary that was rolled back. at_s: Unix seconds; why: by whom, or what the gate found."""

    digest: str
    at_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Alias:
    """What an alias stands for, by digests.

    canary, weight  the share, in [0, 1], of the alias's sessions that `canary` gets; None: none
    history         what it stood for before, newest last, for rolling back
    gate            whether a canary that is worse is rolled back by itself
    trial           number of the canary, so that the same version again is another trial, also
                    of an adapter that was retired and published anew; 0: there was none yet
    ended           canaries that were rolled back, newest last
    """

    digest: str
    canary: str | None = None
    weight: float = 0.0
    history: tuple[str, ...] = ()
    gate: bool = True
    trial: int = 0
    ended: tuple[EndedCanary, ...] = ()

    def pick(self, at: Callable[[], float]) -> str:
        """The canary's share comes first, so that widening it moves nobody back."""
        return self.canary if self.canary is not None and at() < self.weight else self.digest

    def with_canary(self, digest: str, weight: float, gate: bool | None, at_s: float) -> Alias:
        """gate None: that of the canary before it, if one runs, else on. at_s: now, Unix time."""
        if gate is None:
            gate = self.gate or self.canary is None
        trial = self.trial
        if self.canary != digest:
            trial = max(trial + 1, int(at_s * 1000))
        return replace(self, canary=digest, weight=weight, gate=gate, trial=trial)

    def without_canary(self, at_s: float = 0.0, why: str = "") -> Alias:
        """why: to be remembered; "": it ended as any canary does."""
        ended = self.ended
        if why and self.canary is not None:
            ended = (*ended, EndedCanary(self.canary, at_s, why))[-MAX_ENDED:]
        return replace(self, canary=None, weight=0.0, ended=ended)

    def to_value(self) -> dict[str, Any]:
        ended = [asdict(e) for e in self.ended]
        return {**asdict(self), "history": list(self.history), "ended": ended}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> Alias:
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        ended = tuple(EndedCanary(**e) for e in known.get("ended", ()))
        return cls(**{**known, "history": tuple(known.get("history", ())), "ended": ended})


def position(tenant: str, name: str, selector: str | None, session: str) -> float:
    """Where a session or user stands in [0, 1) for an alias: the same at every ingress."""
    text = "\0".join((tenant, name, selector or PRODUCTION, session))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / (1 << 56)


def is_digest(selector: str) -> bool:
    """Whether `selector` is the beginning of a digest, which no alias can look like."""
    return _DIGEST.fullmatch(selector) is not None


def is_selector(selector: str) -> bool:
    """Whether it can stand behind the `@` of a model."""
    return is_digest(selector) or NAME.fullmatch(selector) is not None


def check_alias(alias: str) -> str:
    """Answer `alias`. Raises InvalidRequest for what can't be one."""
    if not NAME.fullmatch(alias) or re.fullmatch(r"[0-9a-f]{8,}", alias) or alias == CANARY:
        raise InvalidRequest(
            f"{alias[:80]!r} is not an alias. Use 1 to 63 of a-z, 0-9, '.', '_' and '-', beginning"
            " with a letter or digit, that don't read like a digest. `canary` is production's.",
            param="as",
        )
    return alias

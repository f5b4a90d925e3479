"""The values that cross process boundaries. Standard library only; nothing changes once made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")

WIRE_VERSION = 1
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who is served and billed.

    weight          share of the service relative to other tenants, > 0
    max_concurrent  requests of this tenant in progress at once, one ingress
    max_queued      of those, how many may be waiting for their first token
    max_tokens_per_minute  prompt and output tokens of the whole service (None: no limit)
    max_host_bytes, max_device_bytes  of its adapters on one replica, in host memory and on the
                    device (None: no limit). At its limit a tenant's own adapters make way for its
                    next one; see `engine.adapters.quotas`
    soft_kv_share, hard_kv_share  parts, 0 .. 1, of a replica's KV pages: above the first, what it
                    has borrowed is the first to go; above the second it never gets (None: no limit)
    """

    id: str
    weight: float = 1.0
    max_concurrent: int = 256
    max_queued: int = 128
    max_host_bytes: int | None = None
    max_device_bytes: int | None = None
    soft_kv_share: float | None = None
    hard_kv_share: float | None = None
    max_tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """Frozen identity of one immutable adapter version.

    digest         sha256 (hex) of the version's canonical manifest
    base_revision  the base model revision that it was published for
    ranks          its distinct ranks, ascending
    num_elements   size of its packed block (`AdapterLayout.num_elements`); times the serving
                   dtype's size this is what it takes in host memory and on the device
    num_bytes      size of its stored object
    uri            where the object store keeps it
    """

    tenant: str
    name: str
    digest: str
    base_revision: str
    ranks: tuple[int, ...]
    num_elements: int
    num_bytes: int
    uri: str

    @property
    def key(self) -> str:
        """Names this version everywhere: objects, residency, prefix cache, metrics."""
        return f"{self.tenant}/{self.digest}"

    @property
    def ring_key(self) -> str:
        """Places it on the ring: a new version lands where its predecessor is warm."""
        return f"{self.tenant}/{self.name}"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one row's next token is drawn. Each row has its own.

    temperature 0 or top_k 1 is greedy; top_k 0, top_p 1 and min_p 0 are off. `seed` belongs to this
    sequence alone: the draw at a position depends on (seed, position) and the row's logits.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked of one sequence, tokenised. `n` choices are `n` requests.

    prompt          token ids, never empty
    max_tokens      output tokens at most, >= 1
    stop            strings that end the text (the replica's matter, the core never sees text)
    stop_token_ids  tokens that end the sequence; they are not part of its text
    salt            the client's own narrowing of prefix sharing
    """

    id: str
    tenant: Tenant
    adapter: AdapterRef | None
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    salt: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Plain containers only, so that a replica of the next release can read it."""
        return {
            "v": WIRE_VERSION,
            "id": self.id,
            "tenant": asdict(self.tenant),
            "adapter": None if self.adapter is None else adapter_to_wire(self.adapter),
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "sampling": asdict(self.sampling),
            "stop": self.stop,
            "stop_token_ids": self.stop_token_ids,
            "salt": self.salt,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Request:
        """Unknown fields are a newer sender's optional ones and are dropped.

        Raises ValueError for another major version.
        """
        _check_version(wire)
        adapter = wire["adapter"]
        sampling = dict(wire["sampling"])
        sampling["logit_bias"] = tuple((int(t), float(b)) for t, b in sampling["logit_bias"])
        return cls(
            id=wire["id"],
            tenant=_known(Tenant, wire["tenant"]),
            adapter=None if adapter is None else adapter_from_wire(adapter),
            prompt=tuple(wire["prompt"]),
            max_tokens=wire["max_tokens"],
            sampling=_known(SamplingParams, sampling),
            stop=tuple(wire["stop"]),
            stop_token_ids=tuple(wire["stop_token_ids"]),
            salt=wire["salt"],
        )


def adapter_to_wire(ref: AdapterRef) -> dict[str, Any]:
    return {"v": WIRE_VERSION, **asdict(ref)}


def adapter_from_wire(wire: Mapping[str, Any]) -> AdapterRef:
    """Inverse of `adapter_to_wire`. Raises ValueError for another major version."""
    _check_version(wire)
    return _known(AdapterRef, {**wire, "ranks": tuple(wire["ranks"])})


def _check_version(wire: Mapping[str, Any]) -> None:
    if wire.get("v", WIRE_VERSION) != WIRE_VERSION:
        raise ValueError(f"wire version {wire['v']} is not {WIRE_VERSION}: upgrade this process")


def _known(cls: type[T], values: Mapping[str, Any]) -> T:
    names = cls.__dataclass_fields__  # type: ignore[attr-defined]
    return cls(**{k: v for k, v in values.items() if k in names})

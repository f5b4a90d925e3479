"""Models as `/v1/models` tells of them: the base, and adapters with it for a parent. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deployments.registry.adapter_record import AdapterRecord
from engine.types import AdapterRef


@dataclass(frozen=True, slots=True)
class BaseModelFacts:
    """What answers say of the base. created: Unix seconds."""

    name: str
    revision: str
    created: int


def base_model(base: BaseModelFacts) -> dict[str, Any]:
    return {
        "id": base.name,
        "object": "model",
        "created": base.created,
        "owned_by": "loraplex",
        "parent": None,
        "root": base.name,
    }


def adapter_model(base: BaseModelFacts, record: AdapterRecord, ref: AdapterRef) -> dict[str, Any]:
    """By its bare name, as `ref`."""
    version = record.version(ref.digest)
    return {
        "id": record.model,
        "object": "model",
        "created": 0 if version is None else int(version.published_s),
        "owned_by": record.tenant,
        "parent": base.name,
        "root": f"{record.model}@{ref.digest[:12]}",
    }

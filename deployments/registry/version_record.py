"""What the registry keeps of one immutable version of an adapter. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.types import AdapterRef, adapter_from_wire, adapter_to_wire


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt that was put to a version before anybody else could, greedily.

    prompt      text; a user's message where the base has a chat template
    max_tokens  of the answer
    expect      what the answer must contain; "": nothing in particular
    answer      what the version said; None: not asked yet
    """

    prompt: str
    max_tokens: int
    expect: str = ""
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One immutable version of an adapter.

    base         the base that its config names
    asserted_by  who vouched for another base than the accepted ones; None where it was accepted
    modules      module names, layer numbers replaced by `*`, sorted
    num_modules  how many modules it changes
    warnings     what a person should know of it
    retired_s    None while requests may name it; after that this is a tombstone
    probes       with their answers
    """

    ref: AdapterRef
    published_s: float
    by: str
    base: str
    asserted_by: str | None
    modules: tuple[str, ...]
    num_modules: int
    warnings: tuple[str, ...] = ()
    retired_s: float | None = None
    retired_by: str | None = None
    probes: tuple[Probe, ...] = ()

    @property
    def live(self) -> bool:
        return self.retired_s is None

    @property
    def buried_s(self) -> float:
        """When it was retired; 0 of a live one."""
        return self.retired_s or 0.0

    def buried(self, at_s: float, by: str) -> VersionRecord:
        """As a tombstone; one that is one already, as it is."""
        return replace(self, retired_s=at_s, retired_by=by) if self.live else self

    def to_value(self) -> dict[str, Any]:
        return {
            "ref": {**adapter_to_wire(self.ref), "ranks": list(self.ref.ranks)},
            "published_s": self.published_s,
            "by": self.by,
            "base": self.base,
            "asserted_by": self.asserted_by,
            "modules": list(self.modules),
            "num_modules": self.num_modules,
            "warnings": list(self.warnings),
            "retired_s": self.retired_s,
            "retired_by": self.retired_by,
            "probes": [asdict(p) for p in self.probes],
        }

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> VersionRecord:
        return cls(
            **{
                **{name: value[name] for name in cls.__dataclass_fields__ if name in value},
                "ref": adapter_from_wire(value["ref"]),
                "modules": tuple(value["modules"]),
                "warnings": tuple(value["warnings"]),
                "probes": tuple(Probe(**p) for p in value.get("probes", ())),
            }
        )


@dataclass(frozen=True, slots=True)
class Condemned:
    """A tombstone of which only this is left, until the sweep has removed its object."""

    digest: str
    retired_s: float

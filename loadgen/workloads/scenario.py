"""What every scenario has: parameters with the literature's values, and a way to set others."""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from loadgen.workloads.arrival import Arrival, Schedule, in_order


class WorkloadError(Exception):
    """A workload that can't be made; the text says what to change."""


@dataclass(frozen=True, kw_only=True)
class Scenario(ABC):
    """A named workload. Its fields are its parameters.

    rate_factor    times every request rate, for a service larger or smaller than the one that the
                   scenario was made for
    length_factor  times every length
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Where its numbers are from."""
    ends_on_time: ClassVar[bool] = True
    """False: a number of requests is asked for, and the last may come after duration_s."""

    duration_s: float = 300.0
    rate_factor: float = 1.0
    length_factor: float = 1.0

    @abstractmethod
    def arrivals(self, seed: int) -> Iterable[Arrival]:
        """In any order."""

    def weights(self) -> Mapping[str, float]:
        """Of tenants whose fair share is not 1."""
        return {}

    def build(self, seed: int) -> Schedule:
        """The workload of `seed`. Raises WorkloadError."""
        for limit in ("duration_s", "rate_factor", "length_factor"):
            if getattr(self, limit) <= 0:
                raise WorkloadError(f"{limit} must be above 0.")
        kept = in_order(self.arrivals(seed))
        if self.ends_on_time:
            kept = tuple(a for a in kept if a.time_s < self.duration_s)
        schedule = Schedule(
            scenario=self.name,
            seed=seed,
            parameters=self.parameters(),
            duration_s=max([self.duration_s, *(a.time_s for a in kept[-1:])]),
            arrivals=kept,
            weights=self.weights(),
        )
        if self.length_factor != 1:
            schedule = schedule.with_lengths(self.length_factor)
        return schedule

    def parameters(self) -> dict[str, Any]:
        """Plain values, by name."""
        return dataclasses.asdict(self)

    @classmethod
    def summary(cls) -> str:
        """The first sentence of its description."""
        return (cls.__doc__ or "").split("\n\n")[0].replace("\n    ", " ")

    @classmethod
    def with_settings(cls, settings: Mapping[str, str]) -> Self:
        """With some parameters other than by default, as a command line writes them: lists with
        commas. Raises WorkloadError that names what there is."""
        types = typing.get_type_hints(cls)
        names = [f.name for f in dataclasses.fields(cls)]
        values: dict[str, Any] = {}
        for name, text in settings.items():
            if name not in names:
                raise WorkloadError(f"{cls.name} has no {name!r}. It has {', '.join(names)}.")
            values[name] = _read(name, text, types[name])
        return cls(**values)


def _read(name: str, text: str, kind: Any) -> Any:
    try:
        if typing.get_origin(kind) is tuple:
            item = typing.get_args(kind)[0]
            return tuple(item(part) for part in text.split(","))
        return kind(text)
    except ValueError:
        wanted = getattr(kind, "__name__", "value")
        raise WorkloadError(f"{name}={text!r} is not a {wanted}.") from None


def tenant_name(index: int) -> str:
    return f"t{index:03}"


def adapter_name(index: int) -> str:
    return f"a{index:04}"

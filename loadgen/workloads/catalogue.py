"""Every scenario, by its name."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.workloads import situations, vtc
from loadgen.workloads.punica import Punica
from loadgen.workloads.scenario import Scenario, WorkloadError
from loadgen.workloads.slora import SLora
from loadgen.workloads.traces import Trace

SCENARIOS: Mapping[str, type[Scenario]] = {
    kind.name: kind
    for kind in (
        SLora,
        Punica,
        vtc.Overload,
        vtc.OverloadMany,
        vtc.Weighted,
        vtc.Proportional,
        vtc.OnOff,
        vtc.OnOffOverload,
        vtc.ShortLong,
        vtc.InOut,
        vtc.Ramp,
        vtc.Shift,
        situations.FlashCrowd,
        situations.Diurnal,
        situations.NoisyNeighbour,
        situations.ColdStart,
        situations.Campaign,
        Trace,
    )
}


def scenario(name: str, settings: Mapping[str, str]) -> Scenario:
    """With `settings` in place of defaults. Raises WorkloadError."""
    kind = SCENARIOS.get(name)
    if kind is None:
        raise WorkloadError(f"There is no scenario {name!r}. There are {', '.join(SCENARIOS)}.")
    return kind.with_settings(settings)

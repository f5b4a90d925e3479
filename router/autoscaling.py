"""How many replicas the fleet should have: a policy class to name in Ray Serve's YAML. Pure.

    autoscaling_config:
      policy:
        policy_function: router.autoscaling:SlotPressurePolicy
        policy_kwargs: {target_occupancy: 0.8, target_queue_s: 0.5}

It reads what each replica hands to Ray in `record_autoscaling_stats`:

    running   sequences in a row
    waiting   sequences without one (waiting for room, or for their adapter)
    rows      rows that it has
    queue_s   how long its waiting sequences have been waiting, on average, seconds

Request counts alone mislead: one request is anything from a token to a context. Hysteresis,
smoothing and the bounds are Ray's (`upscale_delay_s`, factors, `min_replicas`), applied to what
this answers. Which replica goes is Ray's choice too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_RUNNING, _WAITING, _ROWS, _QUEUE_S = "running", "waiting", "rows", "queue_s"


class Context(Protocol):
    """What the policy reads of Ray's `AutoscalingContext`.

    aggregated_metrics  metric name -> replica -> its value over Ray's look-back period
    """

    current_num_replicas: int
    target_num_replicas: int

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Hashable, float]] | None: ...


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The fleet as its replicas report it. Means over the `num_reporting` replicas that do."""

    num_reporting: int
    demand_per_replica: float
    rows_per_replica: float
    queue_s: float

    @classmethod
    def read(cls, metrics: Mapping[str, Mapping[Hashable, float]] | None) -> FleetLoad:
        """A replica counts once it reports its rows; what else it leaves out is 0."""
        metrics = metrics or {}
        rows = {r: n for r, n in metrics.get(_ROWS, {}).items() if n > 0}
        num = len(rows)
        if not num:
            return cls(0, 0.0, 0.0, 0.0)

        def mean(name: str) -> float:
            values = metrics.get(name, {})
            return sum(max(0.0, values.get(replica, 0.0)) for replica in rows) / num

        demand = mean(_RUNNING) + mean(_WAITING)
        return cls(num, demand, sum(rows.values()) / num, mean(_QUEUE_S))


class SlotPressurePolicy:
    """Enough replicas that their rows are `target_occupancy` full, and more while queues are long.

    target_occupancy  share of the rows in use that leaves room for bursts, in (0, 1]
    target_queue_s    a mean queue time above this asks for more, in proportion
    max_growth        at most so many times the present number in one decision, > 1
    """

    def __init__(
        self,
        target_occupancy: float = 0.8,
        target_queue_s: float = 0.5,
        max_growth: float = 2.0,
    ) -> None:
        """Raises ValueError for a value out of range."""
        if not 0 < target_occupancy <= 1 or not target_queue_s > 0 or not max_growth > 1:
            raise ValueError(
                "target_occupancy must be in (0, 1], target_queue_s above 0, max_growth above 1"
            )
        self._target_occupancy = target_occupancy
        self._target_queue_s = target_queue_s
        self._max_growth = max_growth

    def __call__(self, ctx: Context) -> tuple[float, dict[str, Any]]:
        """Ray's interface: (desired replicas, state to keep). Keeps no state."""
        load = FleetLoad.read(ctx.aggregated_metrics)
        if not load.num_reporting or not ctx.current_num_replicas:
            return float(ctx.target_num_replicas), {}
        desired = self.desired(load, ctx.current_num_replicas)
        if desired >= ctx.current_num_replicas:  # some asked for before may still be starting
            desired = max(desired, float(ctx.target_num_replicas))
        return desired, {}

    def desired(self, load: FleetLoad, num_replicas: int) -> float:
        """Replicas wanted, possibly a fraction (Ray rounds up); replicas that don't report yet
        count as like the others. Never fewer than now while queues are above the target."""
        occupancy = load.demand_per_replica / load.rows_per_replica
        pressure = max(occupancy / self._target_occupancy, self._queue_pressure(load))
        return num_replicas * min(pressure, self._max_growth)

    def _queue_pressure(self, load: FleetLoad) -> float:
        """Above 1 where queues are too long; below, they say nothing of how many could go."""
        ratio = load.queue_s / self._target_queue_s
        return ratio if ratio >= 1 else 0.0

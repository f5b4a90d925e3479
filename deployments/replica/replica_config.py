"""What a replica needs to know: plain values that Ray pickles, built by `deployments/config.py`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from deployments.telemetry.section import TelemetrySection
from engine.config import EngineConfig
from engine.messages import Ready


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One replica.

    tokenizer_path     the model's tokenizer.json
    base_revision      what adapters and cached prefixes are bound to
    stream_interval_s  under load, a stream's tokens are joined for up to so long; 0: never
    free_rate          events a second, over all streams, below which nothing is joined; at twice
                       that, for the whole `stream_interval_s`
    startup_timeout_s  the core must be ready by then
    stall_s            a core silent for so long is unhealthy (it reports once a second at least,
                       but for a step longer than that)
    drain_s            after the core's death, how long error events may take to be picked up
    telemetry          what it tells of itself, and where to
    json_logs          whether its log lines are JSON objects on the error output
    home_node          the only Ray node that it may run on (`platform.hosts`); empty: any
    """

    engine: EngineConfig
    tokenizer_path: str
    base_revision: str
    stream_interval_s: float = 0.05
    free_rate: float = 400.0
    startup_timeout_s: float = 600.0
    stall_s: float = 30.0
    drain_s: float = 0.3
    home_node: str = ""
    telemetry: TelemetrySection = TelemetrySection()
    json_logs: bool = False


def device_facts(engine: EngineConfig, ready: Ready) -> dict[str, Any]:
    """What the core runs on. memory: bytes, see `engine.device_memory`; None but on a GPU."""
    return {
        "kind": engine.model.device,
        "dtype": engine.model.dtype,
        "depth": engine.schedule.depth,
        "startup_s": ready.startup_s,
        "num_pages": ready.num_pages,
        "page_bytes": ready.page_bytes,
        "arena_bytes": ready.num_pages * ready.page_bytes,
        "memory": None if ready.memory is None else asdict(ready.memory),
    }

"""An engine's configuration: frozen, composed, complete before use. Standard library only.

`deployments/config.py` reads it from YAML; every "auto" there is resolved before one of these is
built. Unknown keys never get this far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Device = Literal["cpu", "cuda", "fake"]
Dtype = Literal["float32", "bfloat16"]
Order = Literal["deficit", "vtc", "fcfs"]
Price = Literal["tokens", "device_seconds", "page_seconds"]
Charge = Literal["expected", "budget"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The backbone and what runs it.

    path     Hugging Face folder; unused on the fake device
    threads  CPU threads of the step
    revision  the base revision, which the prefix cache's keys begin with (DESIGN 2)
    vocab_size  token ids are below it; None: not checked here (the fake device has none)
    device   "fake" sleeps `fake_step_s` a step and answers token ids from a counter: for measuring
             everything around the model
    """

    path: str
    device: Device = "cpu"
    dtype: Dtype = "float32"
    threads: int = 1
    max_model_len: int = 2048
    fake_step_s: float = 0.009
    revision: str = ""
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Sizes in bytes. `page_tokens` is P, the tokens of one KV page.

    arena_bytes  None, on a GPU alone: `utilisation` of what is left there once weights,
                 workspaces and captured graphs have theirs
    """

    arena_bytes: int | None
    host_bytes: int
    page_tokens: int = 16
    max_move_bytes: int = 64 << 20
    utilisation: float = 0.9

    def num_pages(self, page_bytes: int) -> int:
        """Pages of an arena whose size is given. Raises ValueError where it isn't."""
        if self.arena_bytes is None:
            raise ValueError("memory.arena_bytes is found by a GPU alone: name it on this device")
        return self.arena_bytes // page_bytes


MAX_STEP_S: Mapping[Device, float] = {"cpu": 0.5, "cuda": 0.06, "fake": 0.5}
"""Sensible sizes of a step, in seconds."""


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """depth: plans on the device while the next is scheduled (0 on the CPU, 1 on a GPU).
    max_seqs: rows. max_step_tokens caps a pass; max_step_s sizes it by measured cost.
    prefill_steps: prompts are read within so many steps while others decode, spread over them so
    that steps are of about the same size (`engine.pacing`); 1: each step takes all that it may."""

    max_seqs: int = 32
    max_step_tokens: int = 512
    max_step_s: float = 0.5
    prefill_steps: int = 6
    depth: int = 0
    max_preemptions: int = 4
    prefix_cache: bool = True


@dataclass(frozen=True, slots=True)
class AccountConfig:
    """Who is served next; docs/fairness.md says what each choice favours. Amounts are in weighted
    tokens.

    order           `deficit`: the least served, what is expected of admitted requests counted in;
                    `vtc`: without that; `fcfs`: the oldest request, whoever's it is
    price           of service: `tokens`, `device_seconds` or `page_seconds` (`engine.prices`)
    charge          for output at admission: what is `expected`, or the `budget`, max_tokens
    w_p, w_q        a prompt token that is computed, and an output token
    w_load          a MiB of adapter that is loaded
    w_s             a second of the whole device, at the prices in seconds
    default_output  output tokens expected of a tenant with no history
    locality_slack_tokens  accounts no further apart count as equal
    w_local         seconds per token: how much longer another must have waited than a request whose
                    adapter is in the batch already (`engine.turns`)
    local_floor     part of its local share that a tenant keeps however much others serve it
    """

    order: Order = "deficit"
    price: Price = "tokens"
    charge: Charge = "expected"
    w_p: float = 1.0
    w_q: float = 2.0
    w_load: float = 1.0
    w_s: float = 20_000.0
    default_output: int = 256
    locality_slack_tokens: float = 256.0
    w_local: float = 0.0005
    local_floor: float = 0.25


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """max_loads: loads at once in the loader, max_fetches of them of versions that come from the
    store; max_unpacks at a time are read, verified and laid out. failure_ttl_s: how long a failure
    is remembered, the next in a row for twice as long, up to max_failure_ttl_s; a permanent one
    (the bytes themselves are at fault) for permanent_failure_ttl_s.
    min_residency_s: how long an adapter in use keeps its place on the device when others wait for
    room; max_drain_s: how long its sequences may then run on before they are preempted.
    max_kills: a version that killed the loader so often is refused; max_faults: likewise one whose
    output was not finite in so many requests, for permanent_failure_ttl_s. max_rank: of an
    adapter's modules on a GPU, which keeps workspaces for it and, above 16, graphs besides those
    for ranks up to 16."""

    max_loads: int = 8
    max_fetches: int = 6
    max_unpacks: int = 2
    min_residency_s: float = 1.0
    max_drain_s: float = 5.0
    failure_ttl_s: float = 5.0
    max_failure_ttl_s: float = 60.0
    permanent_failure_ttl_s: float = 300.0
    max_kills: int = 2
    max_faults: int = 3
    max_rank: int = 256


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How an `s3://` store is spoken to.

    max_connections   kept open by one process
    connect_timeout_s, read_timeout_s  silence after which an attempt is given up
    max_attempts      in a row, without a byte of progress
    first_pause_s     before the second attempt; doubles up to max_pause_s, half of it random
    deadline_s        for one object, all attempts together; what has arrived by then is kept
    part_bytes        a larger file is sent in parts of this size (S3 takes 5 MiB and more)
    """

    max_connections: int = 16
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 10.0
    max_attempts: int = 5
    first_pause_s: float = 0.2
    max_pause_s: float = 5.0
    deadline_s: float = 120.0
    part_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where adapter objects are (`file://` or `s3://`) and the disk tier below `disk_path`."""

    url: str
    disk_path: str
    disk_bytes: int = 4 << 30
    options: StoreOptions = StoreOptions()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """measures: whether `engine.measuring` counts."""

    model: ModelConfig
    memory: MemoryConfig
    store: StoreConfig
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    accounts: AccountConfig = field(default_factory=AccountConfig)
    adapters: AdapterConfig = field(default_factory=AdapterConfig)
    measures: bool = True

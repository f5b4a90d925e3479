"""The sections of the configuration file: their keys, defaults and ranges.

The engine's own parts `accounts` and `adapters` are those of `engine.config`.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from engine.adapters.s3_address import S3Address
from engine.config import (
    MAX_STEP_S,
    AccountConfig,
    AdapterConfig,
    Device,
    Dtype,
    ScheduleConfig,
    StoreOptions,
)
from engine.errors import LoraplexError

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]

_MIB = 1 << 20
MIN_PART_BYTES = 5 * _MIB
_MAY_BE_ZERO = {"locality_slack_tokens", "w_local", "w_load", "local_floor"}
_SCHEDULE = ScheduleConfig()


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class BaseSection(Section):
    """The backbone.

    path      Hugging Face folder
    name      what clients call it in `model`; matched before adapter names, whole
    revision  its revision; None: computed from the folder
    accepts   values of an adapter's `base_model_name_or_path` that mean this base
    """

    path: Path
    name: str = Field(min_length=1)
    revision: str | None = None
    accepts: tuple[str, ...] = ()


class MemorySection(Section):
    """Bytes of one replica. "auto" shares what the cgroup allows between the replicas; on a GPU the
    arena gets `utilisation` of what is left there once weights, workspaces and graphs have theirs.
    """

    arena_bytes: Count | Auto = "auto"
    host_bytes: Count | Auto = "auto"
    page_tokens: Count = 16
    max_move_bytes: Count = 64 * _MIB
    utilisation: Annotated[float, Field(gt=0, le=1)] = 0.9
    disk_bytes: Count = 4 << 30


class ScheduleSection(Section):
    """As `engine.config.ScheduleConfig`. "auto", on a GPU and else: depth 1 and 0, max_step_s as in
    `engine.config.MAX_STEP_S`."""

    max_seqs: Count = _SCHEDULE.max_seqs
    max_step_tokens: Count = _SCHEDULE.max_step_tokens
    max_step_s: Seconds | Auto = "auto"
    prefill_steps: Count = _SCHEDULE.prefill_steps
    depth: Annotated[int, Field(ge=0)] | Auto = "auto"
    max_preemptions: Annotated[int, Field(ge=0)] = _SCHEDULE.max_preemptions
    prefix_cache: bool = _SCHEDULE.prefix_cache

    def resolved(self, device: Device) -> ScheduleConfig:
        depth = self.depth
        if depth == "auto":
            depth = 1 if device == "cuda" else 0
        max_step_s = MAX_STEP_S[device] if self.max_step_s == "auto" else self.max_step_s
        known = {**self.model_dump(), "depth": depth, "max_step_s": max_step_s}
        return ScheduleConfig(**known)


class AutoscalingSection(Section):
    """Between these bounds, by `router.autoscaling.SlotPressurePolicy`; delays are Ray's."""

    min_replicas: Count = 1
    max_replicas: Count
    target_occupancy: Annotated[float, Field(gt=0, le=1)] = 0.8
    target_queue_s: Seconds = 0.5
    upscale_delay_s: Annotated[float, Field(ge=0)] = 30
    downscale_delay_s: Annotated[float, Field(ge=0)] = 600


class ReplicaSection(Section):
    """The replicas of the model.

    num_replicas  how many; with `autoscaling`, how many at first
    num_cpus      what Ray reserves for a replica actor (its children are not Ray's to count)
    num_gpus      what Ray reserves; "auto": 1 on device cuda, else 0
    device        "auto": cuda where Ray has a GPU and torch is built for it, with no more replicas
                  than GPUs; else cpu
    threads       CPU threads of a replica's step
    shutdown_s    longest a replica may drain: at least the longest generation
    stream_interval_s  longest that a later token waits to be joined with the next
    stall_s       a core silent for so long is unhealthy
    """

    num_replicas: Count = 1
    autoscaling: AutoscalingSection | None = None
    num_cpus: Annotated[float, Field(ge=0)] = 0.1
    num_gpus: Annotated[float, Field(ge=0)] | Auto = "auto"
    device: Device | Auto = "cpu"
    dtype: Dtype | Auto = "auto"
    threads: Count | Auto = "auto"
    max_model_len: Annotated[int, Field(ge=2)] | Auto = "auto"
    fake_step_s: Seconds = 0.009
    memory: MemorySection = MemorySection()
    schedule: ScheduleSection = ScheduleSection()
    accounts: AccountConfig = AccountConfig()
    adapters: AdapterConfig = AdapterConfig()
    stream_interval_s: Annotated[float, Field(ge=0)] = 0.05
    startup_timeout_s: Seconds = 600
    stall_s: Seconds = 30
    health_check_period_s: Seconds = 1
    health_check_timeout_s: Seconds = 10
    shutdown_s: Seconds = 600

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for part in (self.accounts, self.adapters):
            check_positive(part)
        if self.accounts.local_floor > 1:
            raise ValueError(f"local_floor must be <= 1, not {self.accounts.local_floor}")
        return self

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        scaling = self.autoscaling
        if scaling and not scaling.min_replicas <= self.num_replicas <= scaling.max_replicas:
            raise ValueError("num_replicas must lie within autoscaling's bounds")
        return self

    @property
    def gpus(self) -> float:
        """That Ray reserves for one replica."""
        if self.num_gpus == "auto":
            return 1 if self.device == "cuda" else 0
        return self.num_gpus

    def placed(self, num_gpus: float) -> Self:
        """With "auto" resolved where Ray has so many GPUs that torch can use."""
        if self.device != "auto":
            return self
        if num_gpus < 1:
            return self.model_copy(update={"device": "cpu"})
        on_gpus = self.model_copy(update={"device": "cuda"})
        most = max(1, int(num_gpus / (on_gpus.gpus or 1)))
        scaling = self.autoscaling
        if scaling is not None:
            scaling = scaling.model_copy(
                update={
                    "min_replicas": min(scaling.min_replicas, most),
                    "max_replicas": min(scaling.max_replicas, most),
                }
            )
        num_replicas = min(self.num_replicas, most)
        return on_gpus.model_copy(update={"num_replicas": num_replicas, "autoscaling": scaling})

    @property
    def max_replicas(self) -> int:
        """What a machine that holds all replicas must share between them."""
        return self.num_replicas if self.autoscaling is None else self.autoscaling.max_replicas


class IngressSection(Section):
    """The REST side.

    max_choices      sequences of one client request: prompts x n
    max_in_flight    client requests at once in one ingress process
    request_timeout_s  from a request's arrival to its last token
    registry_poll_s  how often changes of names and keys are fetched; revocation takes at most twice
                     that
    tokenise_inline_chars  longer prompts are tokenised off the event loop
    """

    num_replicas: Count = 1
    num_cpus: Annotated[float, Field(ge=0)] = 0.1
    max_body_bytes: Count = 4 * _MIB
    max_choices: Count = 128
    max_stop: Count = 16
    max_in_flight: Count = 2048
    request_timeout_s: Seconds = 600
    registry_poll_s: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    negative_ttl_s: Seconds = 1
    tokenise_inline_chars: Count = 2000


class RouterSection(Section):
    """Placement. min_bound "auto": a quarter of a replica's rows, as replicas report them."""

    load_factor: Annotated[float, Field(gt=1)] = 1.25
    vnodes: Count = 100
    min_bound: Count | Auto = "auto"
    stats_period_s: Seconds = 0.5
    stats_timeout_s: Seconds = 5


class PublishSection(Section):
    """What may be published, and how long what is replaced stays.

    import_store    a store (as `store`) whose imports/<tenant>/ a tenant's adapters may come from
    max_upload_bytes  of one upload, and of what is taken from the import store
    max_uploads     at once, in one ingress process
    max_rank, allowed_ranks  of every module; none: any. A tenant's record may narrow them
    keep_versions   of an adapter, besides those that an alias stands for or would go back to
    sweep_period_s  between sweeps of the object store
    sweep_margin_s  how much longer than the longest request a retired version's object stays
    """

    import_store: str = ""
    max_upload_bytes: Count = 2 << 30
    max_uploads: Count = 4
    max_rank: Count | None = None
    allowed_ranks: tuple[Count, ...] = ()
    keep_versions: Annotated[int, Field(ge=0, le=1000)] = 10
    sweep_period_s: Seconds = 900
    sweep_margin_s: Annotated[float, Field(ge=0)] = 60


def check_positive(part: AccountConfig | AdapterConfig | StoreOptions) -> None:
    """Raises ValueError for a number that is out of range."""
    for f in fields(part):
        value, zero = getattr(part, f.name), f.name in _MAY_BE_ZERO
        if isinstance(value, bool | str):
            continue
        if value < 0 or (value == 0 and not zero):
            raise ValueError(f"{f.name} must be {'>= 0' if zero else '> 0'}, not {value}")


def check_store(url: str, options: StoreOptions) -> None:
    """Raises ValueError for a store that can't be opened as it is written, whatever is there."""
    check_positive(options)
    if options.part_bytes < MIN_PART_BYTES:
        raise ValueError(f"store_options.part_bytes must be {MIN_PART_BYTES} or more, as S3 wants")
    if url.startswith("s3:"):
        try:
            S3Address.parse(url)
        except LoraplexError as error:
            raise ValueError(error.message) from None

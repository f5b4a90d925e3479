"""The service's configuration, and the only reader of the environment.

Frozen, composed and complete before use; unknown keys are errors. `load` reads it from YAML or from
the arguments of the Serve application; `engine_config` resolves every "auto" to a number. Autos are
resolved once, where the application is built, so that all replicas compute alike: a fleet of unlike
machines names its values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deployments import limits
from engine.config import (
    AccountConfig,
    AdapterConfig,
    Device,
    Dtype,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    ScheduleConfig,
    StoreConfig,
)
from engine.errors import InvalidRequest

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]

_MIB = 1 << 20
_DEFAULT_CONTEXT = 2048
_MAY_BE_ZERO = {"depth", "max_preemptions", "locality_slack_tokens", "w_local"}


class ConfigError(InvalidRequest):
    """The configuration can't be used; the message names the key."""

    code = "invalid_config"


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
    """Bytes of one replica. "auto" shares what the cgroup allows between the replicas."""

    arena_bytes: Count | Auto = "auto"
    host_bytes: Count | Auto = "auto"
    page_tokens: Count = 16
    max_move_bytes: Count = 64 * _MIB
    disk_bytes: Count = 4 << 30


class ReplicaSection(Section):
    """The replicas of the model.

    num_cpus      what Ray reserves for a replica actor (its children are not Ray's to count)
    threads       CPU threads of a replica's step
    shutdown_s    longest a replica may drain: at least the longest generation
    stream_interval_s  longest that a later token waits to be joined with the next
    """

    num_replicas: Count = 1
    num_cpus: Annotated[float, Field(ge=0)] = 0.1
    num_gpus: Annotated[float, Field(ge=0)] = 0
    device: Device = "cpu"
    dtype: Dtype | Auto = "auto"
    threads: Count | Auto = "auto"
    max_model_len: Annotated[int, Field(ge=2)] | Auto = "auto"
    fake_step_s: Seconds = 0.009
    memory: MemorySection = MemorySection()
    schedule: ScheduleConfig = ScheduleConfig()
    accounts: AccountConfig = AccountConfig()
    adapters: AdapterConfig = AdapterConfig()
    stream_interval_s: Annotated[float, Field(ge=0)] = 0.05
    startup_timeout_s: Seconds = 600
    health_check_period_s: Seconds = 1
    health_check_timeout_s: Seconds = 10
    shutdown_s: Seconds = 600

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for part in (self.schedule, self.accounts, self.adapters):
            for f in fields(part):
                value, zero = getattr(part, f.name), f.name in _MAY_BE_ZERO
                if not isinstance(value, bool) and (value < 0 or (value == 0 and not zero)):
                    raise ValueError(f"{f.name} must be {'>= 0' if zero else '> 0'}, not {value}")
        return self


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
    """Placement. `min_bound` "auto" is a quarter of a replica's rows."""

    load_factor: Annotated[float, Field(ge=1)] = 1.25
    vnodes: Count = 100
    min_bound: Count | Auto = "auto"
    stats_period_s: Seconds = 0.5
    stats_timeout_s: Seconds = 5


class AppConfig(Section):
    """The whole. Paths are absolute once loaded.

    data_dir     what the service writes, unless `registry` and `store` say otherwise
    import_root  folders below it may be published over REST; None: none may
    """

    data_dir: Path
    base: BaseSection
    registry: str = ""
    store: str = ""
    import_root: Path | None = None
    replica: ReplicaSection = ReplicaSection()
    ingress: IngressSection = IngressSection()
    router: RouterSection = RouterSection()

    @property
    def registry_url(self) -> str:
        return self.registry or f"sqlite://{self.data_dir / 'registry.db'}"

    @property
    def store_url(self) -> str:
        return self.store or f"file://{self.data_dir / 'objects'}"

    @property
    def min_bound(self) -> int:
        bound = self.router.min_bound
        return max(1, self.replica.schedule.max_seqs // 4) if bound == "auto" else bound

    def max_model_len(self) -> int:
        """Tokens of prompt and output together. Raises ConfigError above what the model knows."""
        wanted = self.replica.max_model_len
        known = _max_position(self.base.path)
        if wanted == "auto":
            return min(_DEFAULT_CONTEXT, known or _DEFAULT_CONTEXT)
        if known is not None and wanted > known:
            raise ConfigError(
                f"replica.max_model_len is {wanted}, but the model ends at {known} positions."
            )
        return wanted

    def engine_config(self, root: Path = limits.ROOT) -> EngineConfig:
        """One replica's engine, every "auto" resolved. Raises ConfigError."""
        replica = self.replica
        dtype = self._dtype(root)
        share = max(1, limits.num_cpus(root) // replica.num_replicas)
        threads = share if replica.threads == "auto" else replica.threads
        arena_bytes, host_bytes = self._memory(dtype, root)
        return EngineConfig(
            model=ModelConfig(
                path=str(self.base.path),
                device=replica.device,
                dtype=dtype,
                threads=threads,
                max_model_len=self.max_model_len(),
                fake_step_s=replica.fake_step_s,
            ),
            memory=MemoryConfig(
                arena_bytes=arena_bytes,
                host_bytes=host_bytes,
                page_tokens=replica.memory.page_tokens,
                max_move_bytes=replica.memory.max_move_bytes,
            ),
            store=StoreConfig(
                url=self.store_url,
                disk_path=str(self.data_dir / "disk"),
                disk_bytes=replica.memory.disk_bytes,
            ),
            schedule=replica.schedule,
            accounts=replica.accounts,
            adapters=replica.adapters,
        )

    def _dtype(self, root: Path) -> Dtype:
        wanted, device = self.replica.dtype, self.replica.device
        if wanted != "auto":
            return wanted
        return "bfloat16" if device == "cuda" or limits.has_fast_bf16(root) else "float32"

    def _memory(self, dtype: Dtype, root: Path) -> tuple[int, int]:
        """(arena, host) bytes of a replica: of its share of the limit less the weights and 512 MiB
        for its three processes, a half and a quarter, within 64 MiB .. 4 GiB each."""
        memory, device = self.replica.memory, self.replica.device
        if device == "cuda" and memory.arena_bytes == "auto":
            raise ConfigError("replica.memory.arena_bytes must be given on device cuda.")
        weights = 0 if device == "fake" else _weight_bytes(self.base.path, dtype)
        share = limits.memory_bytes(root) // (self.replica.num_replicas + 1)
        free = max(0, share - weights - 512 * _MIB)
        arena = memory.arena_bytes
        host = memory.host_bytes
        return (
            min(max(free // 2, 64 * _MIB), 4 << 30) if arena == "auto" else arena,
            min(max(free // 4, 64 * _MIB), 4 << 30) if host == "auto" else host,
        )


@dataclass(frozen=True)
class ClientConfig:
    """What the command line needs to reach a service."""

    url: str = "http://127.0.0.1:8000"
    admin_key: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> ClientConfig:
        """LORAPLEX_URL and LORAPLEX_ADMIN_KEY."""
        env = os.environ if environ is None else environ
        return cls(env.get("LORAPLEX_URL", cls.url), env.get("LORAPLEX_ADMIN_KEY", ""))


def load(
    source: Path | Mapping[str, Any], *, environ: Mapping[str, str] | None = None
) -> AppConfig:
    """Read a YAML file or a mapping of the same shape.

    Relative paths start at LORAPLEX_HOME where that is set, else at the file's folder, else (for a
    mapping) at the working folder. Raises ConfigError.
    """
    env = os.environ if environ is None else environ
    if isinstance(source, Path):
        values, home = _read_yaml(source), source.resolve().parent
    else:
        values, home = dict(source), Path.cwd()
    home = Path(env["LORAPLEX_HOME"]).resolve() if env.get("LORAPLEX_HOME") else home
    try:
        config = AppConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"Configuration: {_first_problems(error)}") from None
    return _absolute(config, home)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"Configuration {path} can't be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"Configuration {path} is not a mapping of keys to values.")
    return values


def _absolute(config: AppConfig, home: Path) -> AppConfig:
    def below(path: Path) -> Path:
        return (home / path.expanduser()).resolve()

    base = config.base.model_copy(update={"path": below(config.base.path)})
    import_root = None if config.import_root is None else below(config.import_root)
    return config.model_copy(
        update={"data_dir": below(config.data_dir), "base": base, "import_root": import_root}
    )


def _first_problems(error: ValidationError) -> str:
    problems = [f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors()[:5]]
    return "; ".join(problems) + "."


def _max_position(path: Path) -> int | None:
    """None where the folder has no readable config.json; whoever loads the model complains."""
    try:
        value = json.loads((path / "config.json").read_text()).get("max_position_embeddings")
    except (OSError, ValueError):
        return None
    return value if isinstance(value, int) else None


def _weight_bytes(path: Path, dtype: Dtype) -> int:
    """Of the weights once loaded, taking the files to be of two bytes an element."""
    stored = sum(f.stat().st_size for f in path.glob("*.safetensors"))
    return stored * (2 if dtype == "float32" else 1)

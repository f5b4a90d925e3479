"""The service's configuration, and the only reader of the environment.

Frozen, composed and complete before use; unknown keys are errors. `load` reads it from YAML or from
the arguments of the Serve application; `engine_config` resolves every "auto" to a number. Autos are
resolved once, where the application is built, so that all replicas compute alike: a fleet of unlike
machines names its values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from pydantic import Field, ValidationError, model_validator

from deployments.canary.gate import GateSection
from deployments.changes.pin_budget import PinsSection
from deployments.config_file import ConfigError, application_arguments, read_yaml
from deployments.config_sections import (
    BaseSection,
    IngressSection,
    PublishSection,
    ReplicaSection,
    RouterSection,
    Section,
    check_store,
)
from deployments.model_folder import number_of, weight_bytes
from deployments.platform import resources
from deployments.registry.redis_url import RedisSettings, with_credentials
from deployments.replica.replica_config import ReplicaConfig
from deployments.rest.wording import problems
from deployments.telemetry.section import TelemetrySection
from engine.config import (
    Device,
    Dtype,
    EngineConfig,
    MemoryConfig,
    ModelConfig,
    StoreConfig,
    StoreOptions,
)
from engine.errors import LoraplexError

_MIB = 1 << 20
MAX_PROBLEMS = 5
"""Of a configuration, told at once."""
_DEFAULT_CONTEXT = 2048


class AppConfig(Section):
    """The whole. Paths are absolute once loaded.

    data_dir     what the service writes, unless `registry` and `store` say otherwise
    registry     where names, tenants and keys are: sqlite:///file, or Redis
                 (`deployments.registry.redis_url`), its passwords by the environment
                 (`registry_url`)
    store        where adapter objects are: file:///folder, or s3://bucket/prefix with endpoint,
                 region and path_style as options (`engine.adapters.s3_address`)
    store_options  limits of an s3:// store (`engine.config.StoreOptions`)
    import_root  folders below it may be published over REST; None: none may
    allowed_adapter_keys  keys of adapter_config.json that this release doesn't know, and that don't
                 change what an adapter computes: the operator's word
    """

    data_dir: Path
    base: BaseSection
    registry: str = Field("", repr=False)
    store: str = ""
    store_options: StoreOptions = StoreOptions()
    import_root: Path | None = None
    allowed_adapter_keys: frozenset[str] = frozenset()
    replica: ReplicaSection = ReplicaSection()
    ingress: IngressSection = IngressSection()
    router: RouterSection = RouterSection()
    publish: PublishSection = PublishSection()
    pins: PinsSection = PinsSection()
    telemetry: TelemetrySection = TelemetrySection()
    gate: GateSection = GateSection()

    @model_validator(mode="after")
    def _openable(self) -> Self:
        check_store(self.store, self.store_options)
        return self

    @property
    def registry_url(self) -> str:
        return self.registry or f"sqlite://{quote(str(self.data_dir / 'registry.db'))}"

    @property
    def store_url(self) -> str:
        return self.store or f"file://{quote(str(self.data_dir / 'objects'))}"

    @property
    def grace_s(self) -> float:
        """How long what was retired may still be needed by a request that began before."""
        return self.ingress.request_timeout_s + self.publish.sweep_margin_s

    def max_model_len(self) -> int:
        """Tokens of prompt and output together. Raises ConfigError above what the model knows."""
        wanted = self.replica.max_model_len
        known = number_of(self.base.path, "max_position_embeddings")
        if wanted == "auto":
            return min(_DEFAULT_CONTEXT, known or _DEFAULT_CONTEXT)
        if known is not None and wanted > known:
            raise ConfigError(
                f"replica.max_model_len is {wanted}, but the model ends at {known} positions."
            )
        return wanted

    def placed(self, num_gpus: float) -> AppConfig:
        """With the device settled, where Ray has so many GPUs that torch can use."""
        return self.model_copy(update={"replica": self.replica.placed(num_gpus)})

    def engine_config(self, root: Path = resources.ROOT) -> EngineConfig:
        """One replica's engine, every "auto" resolved but for a GPU's arena. Raises ConfigError,
        also for a device that isn't settled."""
        replica = self.replica
        device = self._device()
        dtype = self._dtype(root)
        share = max(1, resources.num_cpus(root) // replica.max_replicas)
        threads = share if replica.threads == "auto" else replica.threads
        arena_bytes, host_bytes = self._memory(dtype, root)
        return EngineConfig(
            model=ModelConfig(
                path=str(self.base.path),
                device=device,
                dtype=dtype,
                threads=threads,
                max_model_len=self.max_model_len(),
                fake_step_s=replica.fake_step_s,
                vocab_size=number_of(self.base.path, "vocab_size"),
            ),
            memory=MemoryConfig(
                arena_bytes=arena_bytes,
                host_bytes=host_bytes,
                page_tokens=replica.memory.page_tokens,
                max_move_bytes=replica.memory.max_move_bytes,
                utilisation=replica.memory.utilisation,
            ),
            store=StoreConfig(
                url=self.store_url,
                disk_path=str(self.data_dir / "disk"),
                disk_bytes=replica.memory.disk_bytes,
                options=self.store_options,
            ),
            schedule=replica.schedule.resolved(device),
            accounts=replica.accounts,
            adapters=replica.adapters,
            measures=self.telemetry.metrics,
        )

    def replica_config(self, base_revision: str, home_node: str = "") -> ReplicaConfig:
        """What every replica is given. Raises ConfigError."""
        section = self.replica
        return ReplicaConfig(
            engine=self.engine_config(),
            tokenizer_path=str(self.base.path / "tokenizer.json"),
            base_revision=base_revision,
            stream_interval_s=section.stream_interval_s,
            startup_timeout_s=section.startup_timeout_s,
            stall_s=section.stall_s,
            home_node=home_node,
            telemetry=self.telemetry,
            json_logs=True,
        )

    def _device(self) -> Device:
        if self.replica.device == "auto":
            raise ConfigError("replica.device is auto: the application settles it where Ray runs.")
        return self.replica.device

    def _dtype(self, root: Path) -> Dtype:
        wanted, device = self.replica.dtype, self.replica.device
        if wanted != "auto":
            return wanted
        return "bfloat16" if device == "cuda" or resources.has_fast_bf16(root) else "float32"

    def _memory(self, dtype: Dtype, root: Path) -> tuple[int | None, int]:
        """(arena, host) bytes of a replica: of its share of the limit less the weights and 512 MiB
        for its three processes, a half and a quarter, within 64 MiB .. 4 GiB each. arena None: a
        GPU finds it itself."""
        memory, device = self.replica.memory, self.replica.device
        weights = 0 if device == "fake" else weight_bytes(self.base.path, dtype)
        share = resources.memory_bytes(root) // (self.replica.max_replicas + 1)
        free = max(0, share - weights - 512 * _MIB)
        arena: int | None = min(max(free // 2, 64 * _MIB), 4 << 30)
        if device == "cuda":
            arena = None
        if memory.arena_bytes != "auto":
            arena = memory.arena_bytes
        host = memory.host_bytes
        return arena, min(max(free // 4, 64 * _MIB), 4 << 30) if host == "auto" else host


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
    mapping) at the working folder. Of a Serve config (`deployments/cluster.yaml`) the arguments of
    our application count, as a mapping. Raises ConfigError.
    """
    env = os.environ if environ is None else environ
    if isinstance(source, Path):
        values, home = read_yaml(source), source.resolve().parent
        if "applications" in values:
            return load(application_arguments(values, source), environ=env)
    else:
        values, home = dict(source), Path.cwd()
    home = Path(env["LORAPLEX_HOME"]).resolve() if env.get("LORAPLEX_HOME") else home
    try:
        config = AppConfig.model_validate(values)
        registry = registry_url(config.registry, environ=env)
        telemetry = config.telemetry.completed(env)
    except ValidationError as error:
        said = [sentence for _, sentence in problems(error, AppConfig)]
        raise ConfigError(f"Configuration: {' '.join(said[:MAX_PROBLEMS])}") from None
    completed = {"registry": registry, "telemetry": telemetry}
    return _absolute(config.model_copy(update=completed), home)


def set_in_environment(
    names: Iterable[str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Those of `names` that are set, and to what."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in names if name in env}


def registry_url(url: str, *, environ: Mapping[str, str] | None = None) -> str:
    """A registry's URL, completed by LORAPLEX_REGISTRY_USERNAME, LORAPLEX_REGISTRY_PASSWORD and
    LORAPLEX_REGISTRY_SENTINEL_PASSWORD, so that no file needs to hold a password.

    Raises ConfigError for a Redis URL that says nothing sensible.
    """
    env = os.environ if environ is None else environ
    whole = with_credentials(
        url,
        username=env.get("LORAPLEX_REGISTRY_USERNAME"),
        password=env.get("LORAPLEX_REGISTRY_PASSWORD"),
        sentinel_password=env.get("LORAPLEX_REGISTRY_SENTINEL_PASSWORD"),
    )
    if whole.startswith("redis"):
        try:
            RedisSettings.parse(whole)
        except LoraplexError as error:
            raise ConfigError(error.message) from None
    return whole


def _absolute(config: AppConfig, home: Path) -> AppConfig:
    def below(path: Path) -> Path:
        return (home / path.expanduser()).resolve()

    base = config.base.model_copy(update={"path": below(config.base.path)})
    import_root = None if config.import_root is None else below(config.import_root)
    return config.model_copy(
        update={"data_dir": below(config.data_dir), "base": base, "import_root": import_root}
    )

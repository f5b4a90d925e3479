"""`loraplex doctor`: what would stop a start or a publish, and the remedy.

Exit codes: 0 nothing would, 1 something would, 2 wrong usage.
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import yaml

from deployments.command_line.terminal import REFUSED, Json, show
from deployments.config import AppConfig, ClientConfig, load, set_in_environment
from deployments.config_file import ConfigError
from deployments.doctor import machine, probes
from deployments.doctor.backend_probes import look_at_registry, look_at_store
from deployments.doctor.backends import check_registry, check_store
from deployments.doctor.findings import Finding, Level, failure, ok, worst
from deployments.doctor.model import ModelFacts, check_model, look_at_model
from deployments.model_folder import weight_bytes
from deployments.platform.ray_settings import RAY_SETTINGS
from engine.model.spec import BackboneSpec

COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}
PORT = 8000
MAX_IN_FLIGHT = 2048


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The service's configuration, or its Serve config."),
    ] = None,
    ray: Annotated[str, typer.Option(help="A Ray to look at: its address, or auto.")] = "",
    as_json: Json = False,
) -> None:
    """Say what would stop a start or a publish on this machine, and the remedy.

    Without --config, the machine alone is looked at. Nothing is left behind.
    """
    client: ClientConfig = context.obj
    findings = examine(config, ray, client.admin_key)
    found = worst(findings)
    answer = {"status": found, "findings": [asdict(finding) for finding in findings]}
    show(answer, as_json, "\n".join(map(_line, findings)))
    raise typer.Exit(REFUSED if found is Level.FAILURE else 0)


def examine(path: Path | None, ray: str, admin_key: str) -> list[Finding]:
    """All findings, in the order in which somebody would mend them."""
    config, first = _config(path)
    cluster = probes.ray_cluster(ray)
    section = None if config is None else config.replica
    gpus = probes.gpus()
    findings = [
        *first,
        machine.check_python(sys.version_info[:3]),
        *machine.check_packages(probes.packages()),
        *machine.check_gpu("auto" if section is None else section.device, gpus),
        *machine.check_limits(
            probes.machine_limits(),
            MAX_IN_FLIGHT if config is None else config.ingress.max_in_flight,
        ),
        machine.check_port(port := _port(path), probes.port_holder(port)),
        *machine.check_ray(cluster, config),
        machine.check_ray_settings(RAY_SETTINGS, set_in_environment(RAY_SETTINGS)),
    ]
    if config is None:
        return findings
    model = look_at_model(config.base.path)
    findings += check_model(model)
    if not model.spec_problem:
        findings += _memory(config, gpus, model)
    return findings + _data(config, admin_key)


def _config(path: Path | None) -> tuple[AppConfig | None, list[Finding]]:
    if path is None:
        return None, []
    try:
        return load(path), [ok("configuration", str(path))]
    except ConfigError as error:
        remedy = "Mend the file; every key is described in deployments/config_sections.py."
        return None, [failure("configuration", error.message, remedy)]


def _port(path: Path | None) -> int:
    """Of Serve's proxy: a Serve config says which."""
    try:
        values = {} if path is None else yaml.safe_load(path.read_text())
        return int(values["http_options"]["port"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return PORT


def _memory(config: AppConfig, gpus: machine.GpuFacts, model: ModelFacts) -> list[Finding]:
    """Of this machine, against what its replicas need."""
    try:
        placed = config.placed(len(gpus.gpus) if gpus.usable else 0)
        engine = placed.engine_config()
    except ConfigError as error:
        return [failure("configuration", error.message, "Correct it.")]
    spec, itemsize = BackboneSpec.load(config.base.path), 4 if "32" in engine.model.dtype else 2
    page_bytes = spec.kv_bytes_per_token(itemsize) * engine.memory.page_tokens
    need = machine.Need(
        weights=weight_bytes(config.base.path, engine.model.dtype),
        reserve=(1 + -(-engine.model.max_model_len // engine.memory.page_tokens)) * page_bytes,
        arena=engine.memory.arena_bytes,
        host=engine.memory.host_bytes,
        replicas=placed.replica.num_replicas,
    )
    match engine.model.device:
        case "cuda":
            return machine.check_gpu_memory(gpus.gpus, need)
        case "cpu":
            return [machine.check_memory(probes.machine_limits(), need)]
        case _:
            return [machine.check_memory(probes.machine_limits(), replace(need, weights=0))]


def _data(config: AppConfig, admin_key: str) -> list[Finding]:
    """Where the service keeps things."""
    word = secrets.token_hex(8)
    roots = config.import_root
    return [
        *check_registry(look_at_registry(config.registry_url, admin_key, word)),
        *check_store(look_at_store(config, lambda: datetime.now(UTC), word)),
        machine.check_disk(
            probes.written_folder(config.data_dir / "disk"), config.replica.memory.disk_bytes
        ),
        machine.check_import_root(None if roots is None else probes.read_folder(roots)),
    ]


def _line(finding: Finding) -> str:
    level = typer.style(f"{finding.level:8}", fg=COLOURS[finding.level])
    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    return f"{level} {finding.subject:18} {finding.said.rstrip('.')}{remedy}"

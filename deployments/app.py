"""The Ray Serve application: an ingress in front of replicas and control.

`build` is what a Serve config names (`import_path: deployments.app:build`); its `args` are an
`AppConfig` inline, or `{config: path}` of a YAML file.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.config import AppConfig, load
from deployments.config_file import ConfigError
from deployments.config_sections import ReplicaSection
from deployments.ingress.handles import RayControl, RayReplicas
from deployments.ingress.ingress import Parts, create_app
from deployments.platform.hosts import (
    check_here,
    check_hosts,
    home_node,
    node_here,
    num_nodes,
)
from deployments.platform.serve_process import CONTROL, serve_instance
from deployments.registry import open_registry
from deployments.replica.replica import Replica
from deployments.telemetry.instrument import Where
from deployments.telemetry.logs import about_request, for_request
from deployments.telemetry.metering import metering
from deployments.telemetry.tracing import tracing
from engine.adapters.store import open_store
from engine.log_lines import log_as_json
from engine.model.revision import base_revision

log = logging.getLogger("loraplex.app")

ROUTER = "router.request_router:AdapterRouter"
AUTOSCALER = "router.autoscaling:SlotPressurePolicy"
SLACK = 1024
"""Places beyond what admission lets in: our own refusals must get through, and probes."""
MAX_CONTROL = 1024
"""Calls of control at once: publishers that wait for their turn must not hold up the others."""


class Ingress:
    """The REST side in a Serve replica."""

    def __init__(
        self,
        config: AppConfig,
        revision: str,
        replicas: DeploymentHandle[Any],
        control: DeploymentHandle[Any],
        home: str,
    ) -> None:
        log_as_json("ingress", about_request)
        check_here(home, node_here)
        handles = RayReplicas(replicas)
        self._parts = Parts(
            config=config,
            base_revision=revision,
            registry=open_registry(config.registry_url),
            replicas=handles,
            control=RayControl(control),
            store=open_store(config.store_url, config.store_options),
            adds_request_id=False,  # Serve's proxy does
            tracing=tracing(config.telemetry, Where.INGRESS, serve_instance),
            metering=metering(config.telemetry, Where.INGRESS, serve_instance),
            router_counters=handles.router_counters,
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._parts)


class ControlHost:
    """Control, imported where it runs: nothing else here needs torch."""

    def __init__(self, config: AppConfig, home: str, replicas: DeploymentHandle[Any]) -> None:
        from deployments.control.control import Control  # noqa: PLC0415

        log_as_json("control", about_request)
        check_here(home, node_here)
        self._metering = metering(config.telemetry, Where.CONTROL, serve_instance)
        self._control = Control(config, replicas=RayReplicas(replicas), metering=self._metering)
        self._running: list[asyncio.Task[None]] = []

    async def check_health(self) -> None:
        """The first call begins to sweep: the constructor has no event loop of its own."""
        if not self._running:
            self._running.append(asyncio.create_task(self._control.run()))
            if self._metering is not None:
                self._running.append(asyncio.create_task(self._metering.run()))

    @for_request
    async def stage(self, order: dict[str, Any]) -> dict[str, Any]:
        return await self._control.stage(order)

    @for_request
    async def register(self, version: dict[str, Any], placing: dict[str, Any]) -> dict[str, Any]:
        return await self._control.register(version, placing)

    async def observe(self, report: dict[str, Any]) -> dict[str, Any]:
        return await self._control.observe(report)

    async def core_died(self, order: dict[str, Any]) -> dict[str, Any]:
        return self._control.core_died(order)

    @for_request
    async def trial(self, model: str) -> dict[str, Any]:
        return await self._control.trial(model)

    @for_request
    async def sweep(self, dry_run: bool) -> dict[str, Any]:
        return await self._control.sweep(dry_run)

    @for_request
    async def lease_tokens(self, order: dict[str, Any]) -> dict[str, Any]:
        return self._control.lease_tokens(order)

    @for_request
    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> dict[str, Any]:
        return await self._control.usage(tenants, after, limit)


def build(args: dict[str, Any]) -> serve.Application:
    """Raises ConfigError for what can't be served, before any replica starts."""
    return compose(_config(args))


def compose(config: AppConfig, replica: type[Replica] = Replica) -> serve.Application:
    """The application of `config`; a measurement puts a replica that looks on in the place of ours.

    Raises ConfigError for what can't be served.
    """
    open_registry(config.registry_url).close()  # what can't be opened is told here
    check_hosts(config, num_nodes())
    home = home_node(config, node_here)
    config = config.placed(usable_gpus())
    revision = base_revision(config.base.path, config.base.revision)
    replicas = _replica_deployment(config, replica).bind(config.replica_config(revision, home))
    control = serve.deployment(
        name=CONTROL,
        num_replicas=1,
        max_ongoing_requests=MAX_CONTROL,
        ray_actor_options={"num_cpus": 0},
    )(ControlHost)
    return _ingress_deployment(config).bind(
        config, revision, replicas, control.bind(config, home, replicas), home
    )


def _config(args: dict[str, Any]) -> AppConfig:
    if "config" not in args:
        return load(args)
    if len(args) > 1:
        raise ConfigError("args: give either `config` (a path) or the keys themselves.")
    return load(Path(args["config"]))


def usable_gpus() -> float:
    """That Ray has, where torch is built for them; 0 while there is no Ray."""
    num = ray.cluster_resources().get("GPU", 0.0) if ray.is_initialized() else 0.0  # type: ignore[no-untyped-call]
    if num and version("torch").endswith("+cpu"):
        log.warning("Ray has %g GPUs, but torch is a build without CUDA: serving on the CPU.", num)
        return 0.0
    return float(num)


def _replica_deployment(config: AppConfig, replica: type[Replica]) -> serve.Deployment:
    section, router = config.replica, config.router
    return serve.deployment(
        name="Replica",
        **_size(section),
        max_ongoing_requests=config.ingress.max_in_flight * config.ingress.num_replicas + SLACK,
        graceful_shutdown_timeout_s=section.shutdown_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=section.health_check_period_s,
        health_check_timeout_s=section.health_check_timeout_s,
        ray_actor_options={"num_cpus": section.num_cpus, "num_gpus": section.gpus},
        request_router_config={
            "request_router_class": ROUTER,
            "request_router_kwargs": {
                "load_factor": router.load_factor,
                "vnodes": router.vnodes,
                "min_bound": None if router.min_bound == "auto" else router.min_bound,
            },
            "request_routing_stats_period_s": router.stats_period_s,
            "request_routing_stats_timeout_s": router.stats_timeout_s,
        },
    )(replica)


def _size(section: ReplicaSection) -> dict[str, Any]:
    scaling = section.autoscaling
    if scaling is None:
        return {"num_replicas": section.num_replicas}
    policy = {
        "policy_function": AUTOSCALER,
        "policy_kwargs": scaling.model_dump(include={"target_occupancy", "target_queue_s"}),
    }
    bounds = scaling.model_dump(exclude={"target_occupancy", "target_queue_s"})
    return {
        "autoscaling_config": {
            **bounds,
            "initial_replicas": section.num_replicas,
            "policy": policy,
        }
    }


def _ingress_deployment(config: AppConfig) -> serve.Deployment:
    section = config.ingress
    return serve.deployment(
        name="Ingress",
        num_replicas=section.num_replicas,
        max_ongoing_requests=section.max_in_flight + SLACK,
        graceful_shutdown_timeout_s=config.replica.shutdown_s,
        ray_actor_options={"num_cpus": section.num_cpus},
    )(serve.ingress()(Ingress))

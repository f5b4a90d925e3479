"""What Ray Serve is told of the deployments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.app import compose
from deployments.config import load
from router.autoscaling import SlotPressurePolicy
from tests.support.ingress import write_model


def deployed(folder: Path, **replica: Any) -> Any:
    """The Serve configuration of the replicas."""
    values = {
        "data_dir": str(folder / "data"),
        "base": {"path": str(write_model(folder / "model")), "name": "tiny", "revision": "r"},
        "replica": {"device": "fake", **replica},
    }
    application = compose(load(values, environ={}))
    replicas = application._bound_deployment.init_args[2]
    return replicas._bound_deployment._deployment_config


def test_a_fixed_number_of_replicas(tmp_path: Path) -> None:
    config = deployed(tmp_path, num_replicas=3)
    assert config.num_replicas == 3
    assert config.autoscaling_config is None


def test_the_fleet_scales_by_our_policy(tmp_path: Path) -> None:
    scaling = {"max_replicas": 4, "target_queue_s": 2.0, "upscale_delay_s": 5}
    config = deployed(tmp_path, num_replicas=2, autoscaling=scaling).autoscaling_config
    assert (config.min_replicas, config.initial_replicas, config.max_replicas) == (1, 2, 4)
    assert config.upscale_delay_s == 5
    policy = config.policy.get_policy()
    assert policy.__name__ == SlotPressurePolicy.__name__
    policy(**config.policy.policy_kwargs)
    assert config.policy.policy_kwargs == {"target_occupancy": 0.8, "target_queue_s": 2.0}

"""Whether a service may spread over machines: the embedded registry and store are files of one.

Asked twice: where the application is built, of the nodes that Ray has then; and where a process of
the service starts, since nodes join later.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from deployments.config import AppConfig
from deployments.config_file import ConfigError
from deployments.registry import redis_url

FOLDER_FOR_ALL = "shared=true"
"""In a file:// store's query: the folder is mounted on every node at the same place."""


def check_hosts(config: AppConfig, num_nodes: int) -> None:
    """Raises ConfigError where Ray has more nodes than one and something is a file of one."""
    if num_nodes <= 1:
        return
    if _is_file(config.registry_url):
        raise ConfigError(
            f"Ray has {num_nodes} nodes, and the registry is a file of one of them. Name one that"
            f" all reach: registry: {redis_url.EXAMPLES}."
        )
    if _is_file(config.store_url):
        raise ConfigError(
            f"Ray has {num_nodes} nodes, and the store is a folder of one of them. Name one they"
            " all reach: store: s3://bucket/prefix; or, for a folder mounted on all of them at"
            f" the same place, store: file:///folder?{FOLDER_FOR_ALL}."
        )


def home_node(config: AppConfig, here: Callable[[], str]) -> str:
    """The only Ray node that `config` may run on, asked `here`; empty where any will do."""
    embedded = _is_file(config.registry_url) or _is_file(config.store_url)
    return here() if embedded else ""


def check_here(home: str, here: Callable[[], str]) -> None:
    """For a process that starts. Raises ConfigError on another node than `home`."""
    if home and (node := here()) != home:
        raise ConfigError(
            f"The registry or the store is a file of Ray's node {home[:8]}, and this is node"
            f" {node[:8]}, which joined later. Name ones that all reach: registry:"
            f" {redis_url.EXAMPLES}; store: s3://bucket/prefix; then deploy again. Or take the"
            " node away."
        )


def node_here() -> str:
    """Ray's id of the node that this process runs on; empty without Ray."""
    import ray  # noqa: PLC0415  so that tests of replicas need none

    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""


def num_nodes() -> int:
    """Alive, that Ray has; 1 without Ray."""
    import ray  # noqa: PLC0415

    if not ray.is_initialized():
        return 1
    return sum(bool(n["Alive"]) for n in ray.nodes())  # type: ignore[no-untyped-call]


def _is_file(url: str) -> bool:
    """Of one machine."""
    parts = urlsplit(url)
    return parts.scheme == "sqlite" or (
        parts.scheme == "file" and FOLDER_FOR_ALL not in parts.query.split("&")
    )

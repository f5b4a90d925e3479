"""A router with scripted replicas, and what Ray's caller does around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ray.exceptions import ActorUnavailableError
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve.request_router import PendingRequest, ReplicaID

from router.request_router import AdapterRouter

DEPLOYMENT = DeploymentID(name="Replica", app_name="test")


class ScriptedReplica:
    """Stands for Ray's `RunningReplica`: what it publishes, and what a probe of it answers."""

    def __init__(self, name: str, slot: int | None, *, cap: int = 64) -> None:
        self.replica_id = ReplicaID(unique_id=name, deployment_id=DEPLOYMENT)
        self.max_ongoing_requests = cap
        self.routing_stats: object = {} if slot is None else {"slot": slot, "rows": 4}
        self.replica_metadata: dict[str, object] = {}
        self.num_ongoing = 0
        self.reachable = True
        self.num_probes = 0
        self.hints: list[PendingRequest] = []

    def try_send_request(self, pending: PendingRequest, with_rejection: bool) -> None:
        assert not with_rejection
        self.hints.append(pending)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        self.num_probes += 1
        if not self.reachable:
            raise ActorUnavailableError("unreachable", None)
        return self.num_ongoing


class Harness:
    """The router and what Ray's caller does around it."""

    def __init__(self, num_replicas: int, *, cap: int = 64, **kwargs: object) -> None:
        self.router = AdapterRouter(
            deployment_id=DEPLOYMENT,
            handle_source=DeploymentHandleSource.REPLICA,
            use_replica_queue_len_cache=True,
            initial_backoff_s=0.001,
            max_backoff_s=0.01,
        )
        self.router.initialize_state(**kwargs)
        self.replicas = [ScriptedReplica(f"r{i}", i, cap=cap) for i in range(num_replicas)]
        self.sent_to: dict[str, ScriptedReplica] = {}
        self.router.update_replicas(self.replicas)

    async def send(
        self,
        key: str = "",
        ref_key: str = "",
        request_id: str = "id",
        *,
        is_retry: bool = False,
        args: tuple[object, ...] = (),
    ) -> str:
        """Chooses and counts as sent, in one step as Ray's caller does."""
        metadata = RequestMetadata(
            request_id=request_id,
            internal_request_id=request_id,
            session_id=key,
            multiplexed_model_id=ref_key,
        )
        pending = PendingRequest(args=list(args), kwargs={}, metadata=metadata)
        replica = await self.router._choose_replica_for_request(pending, is_retry=is_retry)
        self.router.on_send_request(replica.replica_id)
        replica.num_ongoing += 1
        self.sent_to[replica.replica_id.unique_id] = replica
        return replica.replica_id.unique_id

    def complete(self, name: str) -> None:
        self.sent_to[name].num_ongoing -= 1
        self.router.on_request_completed(self.id_of(name), "id")
        self.router.decrement_queue_len_cache(self.id_of(name))

    @staticmethod
    def id_of(name: str) -> ReplicaID:
        return ReplicaID(unique_id=name, deployment_id=DEPLOYMENT)

    def check(self) -> None:
        self.router._loads.check()
        self.router._fleet.check()
        self.router._ring.check()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def probed(replica: ScriptedReplica, times: int = 3) -> None:
    """The router has looked for room so often since."""
    seen = replica.num_probes
    await until(lambda: replica.num_probes >= seen + times)

"""An application of featherweight replicas behind the real router, for the router's Ray tests."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from itertools import chain, count
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from tests.support import routers_here

LANES = 4


@ray.remote(num_cpus=0)
class Gate:
    """Holds calls until it is opened, so that a test knows how many are in progress at once."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._inside: Counter[str] = Counter()
        self._most: Counter[str] = Counter()

    async def hold(self, replica: str) -> None:
        self._inside[replica] += 1
        self._most[replica] = max(self._most[replica], self._inside[replica])
        await self._opened.wait()
        self._inside[replica] -= 1

    async def wait_for(self, num: int) -> Counter[str]:
        """Once `num` calls are inside: how many at each replica."""
        while self._inside.total() < num:
            await asyncio.sleep(0.01)
        return self._inside

    async def open(self) -> None:
        self._opened.set()

    async def most(self) -> Counter[str]:
        """The most calls that were inside at once, by replica."""
        return self._most


class Echo:
    """Answers who it is, after passing the gate if there is one."""

    def __init__(self) -> None:
        self._context = serve.get_replica_context()

    def record_replica_metadata(self) -> dict[str, int]:
        return {"slot": self._context.rank.rank, "rows": 32}

    def record_routing_stats(self) -> dict[str, int]:
        return {"slot": serve.get_replica_context().rank.rank, "rows": 32}

    async def __call__(self, gate: Any = None) -> dict[str, Any]:
        replica = self._context.replica_id.unique_id
        if gate is not None:
            await gate.hold.remote(replica)
        slot = serve.get_replica_context().rank.rank
        return {"replica": replica, "slot": f"slot-{slot}", "pid": os.getpid()}


class Client:
    """Stands for the ingress: the one process whose routers place everything."""

    def __init__(self, calm: DeploymentHandle, strict: DeploymentHandle) -> None:
        self._handles = {"calm": calm, "strict": strict}

    async def one(self, to: str, key: str, gate: Any = None) -> dict[str, Any]:
        answer: dict[str, Any] = await self._handles[to].options(session_id=key).remote(gate)
        return answer

    async def in_turn(self, to: str, keys: list[str]) -> dict[str, dict[str, Any]]:
        """One call a key; never more than `LANES` at once, at which nothing spills from "calm"."""

        async def lane(mine: list[str]) -> list[tuple[str, dict[str, Any]]]:
            return [(key, await self.one(to, key)) for key in mine]

        lanes = await asyncio.gather(*(lane(keys[number::LANES]) for number in range(LANES)))
        return dict(chain.from_iterable(lanes))

    async def settle(self, to: str) -> None:
        """Until its router knows of no request in progress: the end of a short one may overtake the
        report of its admission, and then the replica's next report is what tells."""
        for turn in count():
            await self.one(to, f"t/{turn}")
            await asyncio.sleep(0.02)  # its end is told to the router by Ray, in its own time
            if routers_here.ROUTERS[to].num_in_progress == 0:
                return

    async def at_once(self, to: str, key: str, num: int, gate: Any) -> list[dict[str, Any]]:
        """So many concurrent calls inside this one request; they share its internal id."""
        return await asyncio.gather(*(self.one(to, key, gate) for _ in range(num)))


def _echo(name: str, max_ongoing_requests: int, **router_kwargs: Any) -> serve.Application:
    deployment = serve.deployment(
        name=name,
        num_replicas=4,
        max_ongoing_requests=max_ongoing_requests,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=1,
        ray_actor_options={"num_cpus": 0},
        request_router_config={
            "request_router_class": "tests.support.known_router:KnownRouter",
            "request_router_kwargs": router_kwargs,
            "request_routing_stats_period_s": 0.5,
            "request_routing_stats_timeout_s": 5,
        },
    )
    return deployment(Echo).bind()


# "calm" has the default min_bound, a quarter of 32 rows; "strict" spills from the second request.
app = (serve.deployment(max_ongoing_requests=200, ray_actor_options={"num_cpus": 0})(Client)).bind(
    _echo("calm", 100), _echo("strict", 16, min_bound=1)
)

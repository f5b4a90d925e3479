"""The router as Ray Serve runs it, one in each ingress process. The only file here that knows Ray.

It feeds events to the pure parts (`Fleet`, `Ring`, `LoadTable`, `PlacementPolicy`) and carries out
their decision. `_choose_replica_for_request` is overridden, not `choose_replicas` alone, so that
pick and send happen in one step of the event loop: in the base class a burst is routed before any
of it is counted, and concurrent calls inside one client request, which share an id, wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from typing import Any
from zlib import crc32

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from router.counters import RouterCounters
from router.fleet import Fleet, Member
from router.hints import SpillHints, prefetch_order
from router.load import LoadTable
from router.options import RouterOptions
from router.placement import Placement
from router.ring import Ring
from router.routes import note_route

logger = logging.getLogger("loraplex.router")
PREFETCH = "prefetch"
"""The replicas' method that is called ahead of a request."""


class AdapterRouter(RequestRouter):
    """Keeps each adapter's traffic on few replicas.

    A handle call carries the ring key (`tenant/name`) as `session_id` and the version's `ref.key`
    as `multiplexed_model_id`; both empty for the base model. `counters` says why requests went
    where they went.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        clock: Callable[[], float] = kwargs.get("get_curr_time_s") or time.monotonic
        self.counters = RouterCounters()
        self._clock = clock
        self._last_report = clock()
        self._loads = LoadTable(clock)
        self._hints = SpillHints()
        self._fleet = Fleet(())
        self._by_id: dict[str, RunningReplica] = {}
        self._freed = asyncio.Event()
        self._line = asyncio.Lock()
        self._num_waiting = 0
        self._probe: asyncio.Task[Any] | None = None
        self._revival: asyncio.Task[None] | None = None
        self.initialize_state()

    def initialize_state(self, **request_router_kwargs: Any) -> None:
        """Takes `request_router_kwargs`. Raises TypeError or ValueError for what it can't use."""
        self._options = RouterOptions(**request_router_kwargs)
        self._policy = self._options.policy(None)
        self._ring = Ring((), vnodes=self._options.vnodes)

    # Membership -------------------------------------------------------------------------------
    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._refresh()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._refresh()

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        """Skips the replica until a probe gets through; trying it again at once would spin."""
        super().on_replica_actor_unavailable(replica_id)
        self._loads.mark_down(replica_id.unique_id)
        if self._revival is None or self._revival.done():
            self._revival = self._event_loop.create_task(self._revive())

    async def _revive(self) -> None:
        attempt = 0
        while down := [r for id_, r in self._by_id.items() if self._loads.is_down(id_)]:
            await self._backoff(attempt)
            await self._probe_queue_lens(down, attempt)
            attempt += 1

    def _refresh(self) -> None:
        """Takes over who is there. Never raises: Ray would stop sending updates for good."""
        try:
            self._rebuild()
        except Exception:
            _tell(logger.exception, "could not rebuild the ring; the old one stays")
        self._by_id = {id_.unique_id: replica for id_, replica in self._replicas.items()}
        self._loads.set_members(
            {id_: cap for id_, cap in self._fleet.caps.items() if id_ in self._by_id}
        )
        self._freed.set()

    def _rebuild(self) -> None:
        fleet = Fleet(_describe(replica) for replica in self._replicas.values())
        policy = self._options.policy(fleet.rows)
        if fleet.slots.keys() != self._fleet.slots.keys():
            self._ring = Ring(fleet.slots, vnodes=self._options.vnodes, previous=self._ring)
            slots = ", ".join(self._ring.slots[:16])
            _tell(logger.info, "ring of %d slots, %s", len(self._ring), slots)
        self._fleet, self._policy = fleet, policy

    # Loads ------------------------------------------------------------------------------------
    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._loads.sent(replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        self._loads.completed(replica_id.unique_id)
        self._freed.set()

    def decrement_queue_len_cache(self, replica_id: ReplicaID) -> None:
        super().decrement_queue_len_cache(replica_id)
        self._loads.reported_completed(replica_id.unique_id)
        self._freed.set()

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        self._loads.report(replica_id.unique_id, num_ongoing_requests)

    async def _probe_queue_lens(
        self, replicas: list[RunningReplica], backoff_index: int
    ) -> list[tuple[RunningReplica, int | None]]:
        answers: list[tuple[RunningReplica, int | None]] = await super()._probe_queue_lens(
            replicas, backoff_index
        )
        for replica, num_ongoing in answers:
            if num_ongoing is not None:
                self._loads.report(replica.replica_id.unique_id, num_ongoing)
        self._freed.set()
        return answers

    # Choosing ---------------------------------------------------------------------------------
    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """Answers at once unless every replica is full. The caller sends in the same step.

        A retry (the replica refused, or died) pauses first: were our idea of that replica's limit
        out of date, the same choice and the same refusal would spin.
        """
        if is_retry:
            await self._backoff(0)
        replica = None if self._num_waiting else self._pick(pending_request)
        if replica is None:
            replica = await self._wait_for_room(pending_request)
        self._record_queue_wait_time(pending_request)
        return replica

    async def _wait_for_room(self, pending_request: PendingRequest) -> RunningReplica:
        """Waits in line, first come first served: one at the head tries, the others sleep."""
        self.counters.waited += 1
        self._num_waiting += 1
        try:
            async with self._line:
                attempt = 0
                while (replica := self._pick(pending_request)) is None:
                    await self._change(attempt)
                    attempt += 1
                return replica
        finally:
            self._num_waiting -= 1

    async def _change(self, attempt: int) -> None:
        """Until something may have changed: a completion, a report, a new member, or a backoff.

        Other routers' completions can't be seen from here, so a backoff that runs out asks the
        replicas; their answers are the next change.
        """
        self._freed.clear()
        try:
            async with asyncio.timeout(self._compute_backoff_s(attempt)):
                await self._freed.wait()
        except TimeoutError:
            if self._by_id and (self._probe is None or self._probe.done()):
                replicas = list(self._by_id.values())
                self._probe = self._event_loop.create_task(
                    self._probe_queue_lens(replicas, attempt)
                )

    def _pick(self, pending_request: PendingRequest) -> RunningReplica | None:
        began = time.perf_counter()
        placement = self._place(pending_request)
        self.counters.num_picks += 1
        self.counters.pick_s += time.perf_counter() - began
        if placement.replica is None:
            return None
        if pending_request.metadata.call_method != PREFETCH:  # word ahead of a request is none
            self.counters.placed[placement.reason] += 1
        note_route(pending_request.args, placement, self._clock())
        if placement.spare is not None:
            self._prepare(placement.spare, pending_request)
        if self._clock() - self._last_report >= self._options.report_s:
            self._last_report = self._clock()
            _tell(logger.info, "%s", self.counters)
        return self._by_id[placement.replica]

    def _prepare(self, spare: str, pending_request: PendingRequest) -> None:
        """Tells a replica that requests for this adapter will soon overflow to it. Nobody waits for
        that, and a hint that is lost is no loss."""
        metadata = pending_request.metadata
        order = prefetch_order(pending_request.args)
        if order is None or not self._hints.due(
            spare, metadata.multiplexed_model_id, self._clock()
        ):
            return
        hint = PendingRequest(
            args=[order],
            kwargs={},
            metadata=replace(
                metadata,
                internal_request_id=f"{metadata.internal_request_id}-hint",
                call_method=PREFETCH,
                is_streaming=False,
            ),
            resolved=True,
        )
        try:
            self._by_id[spare].try_send_request(hint, with_rejection=False)
            self.counters.hints += 1
        except Exception:
            logger.exception("a hint could not be sent")

    def _place(self, pending_request: PendingRequest) -> Placement:
        metadata = pending_request.metadata
        if not metadata.session_id:
            tie = crc32(metadata.internal_request_id.encode())
            return self._policy.place_base(self._loads, tie)
        slots, fleet = self._fleet.slots, self._fleet
        walk = [slots[slot] for slot in self._ring.walk(metadata.session_id)]
        ref_key = metadata.multiplexed_model_id
        return self._policy.place(walk, self._loads, lambda replica: fleet.holds(replica, ref_key))

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """One rank. Serves only callers that pick without sending; never an empty answer."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        replica = self._pick(pending_request)
        return [candidate_replicas if replica is None else [replica]]


def _tell(write: Callable[..., None], message: str, *args: object) -> None:
    """A log line of the router as a whole. It runs where a request does, and the line must not have
    that one's ids."""
    Context().run(write, message, *args)


def _describe(replica: RunningReplica) -> Member:
    return Member(
        replica=replica.replica_id.unique_id,
        cap=replica.max_ongoing_requests,
        stats=replica.routing_stats or {},
        metadata=replica.replica_metadata or {},
    )

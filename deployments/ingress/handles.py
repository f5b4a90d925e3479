"""The other deployments, as the ingress calls them through Ray Serve handles.

Here Ray's own exceptions end: what leaves is of `engine.errors`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import grpc  # type: ignore[import-untyped]
from ray.exceptions import ActorDiedError, RayActorError, RayError, TaskCancelledError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    ReplicaUnavailableError,
)
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deployments.changes.placing import Placing
from deployments.control.publish_order import PublishOrder
from deployments.ingress.broadcast import answers
from deployments.orders.tier_orders import prefetch_order
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.version_record import VersionRecord
from deployments.rest.answers import Event, error_of
from deployments.telemetry.logs import about_request
from engine.errors import LoraplexError, ReplicaLost, Unavailable
from engine.types import AdapterRef, Tenant, adapter_to_wire
from router.counters import RouterCounters

logger = logging.getLogger(__name__)

LOST = (RayActorError, ReplicaUnavailableError, TaskCancelledError, grpc.aio.AioRpcError)


class RayReplicas:
    """`replicas.Replicas` over the handle of the replica deployment."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._asking: asyncio.Task[list[Mapping[str, Any]]] | None = None

    def generate(
        self, call: Mapping[str, Any], *, ring_key: str, adapter_key: str
    ) -> RayReplicaStream:
        handle = self._handle.options(
            stream=True,
            method_name="generate",
            session_id=ring_key,
            multiplexed_model_id=adapter_key,
            _by_reference=False,
        )
        return RayReplicaStream(cast(DeploymentResponseGenerator[Any], handle.remote(call)))

    def router_counters(self) -> RouterCounters | None:
        """Of this process's router; None before its first call, or where Ray has moved it: there is
        no public way to it."""
        router = getattr(self._handle, "_router", None)
        chosen = getattr(getattr(router, "_asyncio_router", None), "_request_router", None)
        return getattr(chosen, "counters", None)

    async def statuses(self, timeout_s: float) -> list[Mapping[str, Any]]:
        """Of the replicas that answer; one that is lost or hangs doesn't silence the others.

        Askers share the broadcast under way: anybody may ask `/ready`, however often.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(timeout_s))
        return await asyncio.shield(self._asking)

    async def activity(self, timeout_s: float) -> list[Mapping[str, Any]]:
        """For admins alone, so every asker has a broadcast of its own."""
        return await self._broadcast(timeout_s, "activity")

    async def drop(self, refs: Sequence[AdapterRef], now: bool, timeout_s: float) -> None:
        async def told(ref: AdapterRef) -> list[Any]:
            response = self._handle.broadcast("drop", adapter_to_wire(ref), now)
            return await answers(response, timeout_s)

        try:
            told_all = await asyncio.gather(*(told(ref) for ref in refs))
        except (TimeoutError, RayError, RayServeException, grpc.aio.AioRpcError) as error:
            raise Unavailable(f"Not every replica was told: {error}.", retry_after_s=1.0) from None
        for answer in itertools.chain.from_iterable(told_all):
            # What ran on a lost replica has ended.
            if isinstance(answer, BaseException) and not isinstance(answer, LOST):
                raise Unavailable(f"Not every replica was told: {answer}.", retry_after_s=1.0)

    async def _ask(self, timeout_s: float) -> list[Mapping[str, Any]]:
        return await self._broadcast(timeout_s, "status")

    async def tell(
        self, method: str, order: Mapping[str, Any], timeout_s: float
    ) -> list[Mapping[str, Any]]:
        """The same order to every replica. What those say that answer in time: one that hangs
        doesn't silence the others."""
        return await self._broadcast(timeout_s, method, order)

    async def tell_all(self, method: str, order: Mapping[str, Any], timeout_s: float) -> bool:
        said = await self._said(timeout_s, method, order)
        # One that has died will never hear; behind anything else there may be one that lives.
        deaf = [
            answer
            for answer in said
            if isinstance(answer, BaseException) and not isinstance(answer, ActorDiedError)
        ]
        if deaf:
            told = f"{len(deaf)} of {len(said)} replicas have not heard"
            logger.info("%s: %s: %r", method, told, deaf[0])
        return not deaf

    async def _broadcast(
        self, timeout_s: float, method: str, *args: Any
    ) -> list[Mapping[str, Any]]:
        said = await self._said(timeout_s, method, *args)
        if said and all(isinstance(answer, TimeoutError) for answer in said):
            raise _silent()
        return [answer for answer in said if isinstance(answer, Mapping)]

    async def _said(self, timeout_s: float, method: str, *args: Any) -> list[Any]:
        """As `broadcast.answers`. Raises Unavailable where no replica could be called."""
        try:
            said = await answers(self._handle.broadcast(method, *args), timeout_s)
        except (TimeoutError, RayError, RayServeException, grpc.aio.AioRpcError):
            raise _silent() from None
        if late := sum(isinstance(answer, TimeoutError) for answer in said):
            logger.info("%s: %d of %d replicas don't answer in time", method, late, len(said))
        return said

    def hint(self, ref: AdapterRef, tenant: Tenant) -> None:
        """A request for this version comes in a moment: the replica that would get it may begin to
        bring it nearer. Nobody waits for that, and a hint that is lost is no loss."""
        handle = self._handle.options(
            method_name="prefetch",
            session_id=ref.ring_key,
            multiplexed_model_id=ref.key,
            _by_reference=False,
        )
        handle.remote(prefetch_order(ref, to_device=True, ordered=False, tenant=tenant))


class RayReplicaStream:
    """`replicas.ReplicaStream` over one streaming handle call."""

    def __init__(self, responses: DeploymentResponseGenerator[Any]) -> None:
        self._responses = responses

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self

    async def __anext__(self) -> list[Event]:
        try:
            events: list[Event] = await anext(self._responses)
        except StopAsyncIteration:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _lost() from None  # the replica's end cancelled the call, not ours
        except Exception as error:
            raise _translated(error) from error
        return events

    def cancel(self) -> None:
        self._responses.cancel()  # type: ignore[no-untyped-call]


class RayControl:
    """`admin_routes.Control` over the handle of the control deployment."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def stage(self, order: PublishOrder) -> VersionRecord:
        return VersionRecord.from_value(await self._call("stage", asdict(order)))

    async def register(self, version: VersionRecord, placing: Placing) -> AdapterRecord:
        answer = await self._call("register", version.to_value(), asdict(placing))
        return AdapterRecord.from_value(answer)

    async def sweep(self, dry_run: bool) -> dict[str, Any]:
        return await self._call("sweep", dry_run)

    async def observe(self, report: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._call("observe", report)

    async def trial(self, model: str) -> Mapping[str, Any] | None:
        known: Mapping[str, Any] | None = (await self._call("trial", model))["trial"]
        return known

    async def lease_tokens(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return await self._call("lease_tokens", dict(order))

    async def usage(self, tenants: list[str] | None, after: str, limit: int) -> dict[str, Any]:
        return await self._call("usage", tenants, after, limit)

    async def _call(self, method: str, *args: Any) -> dict[str, Any]:
        about = dict(about_request())
        known = {"about": about} if about else {}
        handle = self._handle.options(method_name=method)
        try:
            answer: dict[str, Any] = await handle.remote(*args, **known)
        except (RayError, RayServeException) as error:
            logger.warning("control: %s", error)
            raise Unavailable(
                "The control deployment can't be reached. Try again.", retry_after_s=2.0
            ) from None
        if "error" in answer:
            raise error_of(answer["error"])
        return answer


def _translated(error: Exception) -> Exception:
    """What a failed call means to the client; errors that are bugs stay as they are."""
    if isinstance(error, LoraplexError):
        return error
    if isinstance(error, LOST):
        return _lost()
    if isinstance(error, BackPressureError):
        return Unavailable(
            "The service is overloaded. Try again shortly.", code="overloaded", retry_after_s=1.0
        )
    if isinstance(error, DeploymentUnavailableError):
        return Unavailable("The replicas failed to start. Tell the operator.", code="not_ready")
    return error


def _silent() -> Unavailable:
    return Unavailable("No replica answers in time.", code="not_ready")


def _lost() -> ReplicaLost:
    return ReplicaLost("The replica that served this was lost. Try again.", retry_after_s=1.0)

"""The replicas as the ingress asks them, over a handle of our own making."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, TaskCancelledError
from ray.serve._private.replica_result import ReplicaResult
from ray.serve.handle import DeploymentBroadcastResponse

from deployments.ingress.handles import RayControl, RayReplicas
from deployments.telemetry.logs import about_request, begin_request, for_request
from engine.errors import InvalidRequest, Unavailable
from engine.types import adapter_to_wire
from tests.support.replicas import adapter

HANGS = object()


class Answer:
    """One replica's, as Ray's `ReplicaResult` gives it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.given_up = False

    async def get_async(self) -> Any:
        if self.answer is HANGS:
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up = True
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Broadcast:
    """Answers once it is let go, with what it was given."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = [Answer(answer) for answer in answers]
        self.go = asyncio.Event()

    async def _fetch_replica_results_async(self) -> list[Answer]:
        await self.go.wait()
        return self.answers


class Handle:
    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.broadcasts: list[Broadcast] = []
        self.told: list[tuple[Any, ...]] = []

    def broadcast(self, method: str, *args: Any) -> Broadcast:
        self.told.append((method, *args))
        self.broadcasts.append(Broadcast(self.answers))
        return self.broadcasts[-1]

    async def asked(self, num_times: int) -> None:
        while len(self.broadcasts) < num_times:
            await asyncio.sleep(0)


async def test_askers_share_the_broadcast_under_way() -> None:
    handle = Handle([{"ready": True}, RuntimeError("lost")])
    replicas = RayReplicas(handle)  # type: ignore[arg-type]
    asking = [asyncio.create_task(replicas.statuses(30)) for _ in range(50)]
    await handle.asked(1)
    asking[0].cancel()  # one that goes away takes nothing from the others
    await asyncio.sleep(0)
    handle.broadcasts[0].go.set()
    answers = await asyncio.gather(*asking[1:])
    assert answers == [[{"ready": True}]] * 49 and len(handle.broadcasts) == 1

    again = asyncio.create_task(replicas.statuses(30))
    await handle.asked(2)
    handle.broadcasts[1].go.set()
    assert await again == [{"ready": True}]


async def test_no_answer_in_time_is_unavailable() -> None:
    replicas = RayReplicas(Handle([]))  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="in time"):
        await replicas.statuses(0.01)
    with pytest.raises(Unavailable, match="in time"):
        await told_at_once(Handle([HANGS, HANGS]), 0.01)


async def told_at_once(handle: Handle, timeout_s: float) -> list[Any]:
    replicas = RayReplicas(handle)  # type: ignore[arg-type]
    telling = asyncio.create_task(replicas.tell("retry", {"v": 1}, timeout_s))
    await handle.asked(1)
    handle.broadcasts[0].go.set()
    return list(await telling)


async def test_a_replica_that_hangs_does_not_silence_the_others() -> None:
    handle = Handle([{"slot": 0}, HANGS, ActorDiedError(), None, {"slot": 3}])
    began_s = time.monotonic()
    assert await told_at_once(handle, 0.2) == [{"slot": 0}, {"slot": 3}]
    assert 0.2 <= time.monotonic() - began_s < 10
    await asyncio.sleep(0)
    assert handle.broadcasts[0].answers[1].given_up, "nobody waits for it any more"


@pytest.mark.parametrize(
    ("answers", "have_heard"),
    [([None, {"slot": 1}], True), ([None, ActorDiedError()], True), ([], True)]
    + [
        ([None, unheard], False)
        for unheard in (
            HANGS,
            ActorUnavailableError("a blip of the network", b"\0" * 16),
            InvalidRequest("Order version 1 is not 2."),
            TaskCancelledError(),
            asyncio.CancelledError(),
        )
    ]
    + [([HANGS], False), ([ActorDiedError(), HANGS], False)],
)
async def test_whether_all_that_live_have_heard(answers: list[Any], have_heard: bool) -> None:
    handle = Handle(answers)
    replicas = RayReplicas(handle)  # type: ignore[arg-type]
    telling = asyncio.create_task(replicas.tell_all("set_limits", {"v": 1}, 0.05))
    await handle.asked(1)
    handle.broadcasts[0].go.set()
    assert await telling is have_heard


async def test_what_is_retired_must_reach_one_that_hangs() -> None:
    handle = Handle([None, HANGS])
    replicas = RayReplicas(handle)  # type: ignore[arg-type]
    telling = asyncio.create_task(replicas.drop([adapter("one")], True, 0.05))
    await handle.asked(1)
    handle.broadcasts[0].go.set()
    with pytest.raises(Unavailable, match="Not every replica was told"):
        await telling


class ControlHandle:
    """Of a control whose methods run as in another process: nothing of the caller's context."""

    def __init__(self) -> None:
        self.abouts: list[dict[str, Any]] = []

    def options(self, method_name: str) -> ControlHandle:
        assert method_name == "sweep"
        return self

    def remote(self, *args: Any, **about: Any) -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.sweep(*args, **about), context=contextvars.Context())

    @for_request
    async def sweep(self, dry_run: bool) -> dict[str, Any]:
        self.abouts.append(dict(about_request()))
        return {"dry_run": dry_run}


async def test_control_learns_whose_request_it_works_for() -> None:
    handle = ControlHandle()
    control = RayControl(handle)  # type: ignore[arg-type]

    async def asked() -> None:
        begin_request("r-1").update(trace_id="t")
        assert await control.sweep(True) == {"dry_run": True}

    await asyncio.create_task(asked())
    assert await control.sweep(False) == {"dry_run": False}
    assert handle.abouts == [{"request_id": "r-1", "trace_id": "t"}, {}]


def test_ray_has_the_parts_that_answers_are_read_by() -> None:
    fetch = DeploymentBroadcastResponse._fetch_replica_results_async
    assert inspect.iscoroutinefunction(fetch)
    assert inspect.iscoroutinefunction(ReplicaResult.get_async)


@pytest.mark.parametrize("answers", [[None, None], [None, ActorDiedError()], []])
async def test_every_living_replica_is_told_of_what_is_retired(answers: list[Any]) -> None:
    handle = Handle(answers)
    refs = [adapter("one"), adapter("two")]
    telling = asyncio.create_task(RayReplicas(handle).drop(refs, True, 30))  # type: ignore[arg-type]
    await handle.asked(2)
    for broadcast in handle.broadcasts:
        broadcast.go.set()
    await telling
    assert handle.told == [("drop", adapter_to_wire(ref), True) for ref in refs]


async def test_a_replica_that_was_not_told_is_no_success() -> None:
    handle = Handle([None, ValueError("of another release")])
    telling = asyncio.create_task(
        RayReplicas(handle).drop([adapter("one")], True, 30)  # type: ignore[arg-type]
    )
    await handle.asked(1)
    handle.broadcasts[0].go.set()
    with pytest.raises(Unavailable, match="another release"):
        await telling
    with pytest.raises(Unavailable, match="Not every replica"):
        await RayReplicas(Handle([])).drop([adapter("one")], True, 0.01)  # type: ignore[arg-type]

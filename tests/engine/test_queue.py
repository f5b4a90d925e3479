"""Who waits: FIFO per adapter, and nobody behind an adapter that is not there."""

from __future__ import annotations

import pytest

from engine.queue import WaitingQueue
from engine.sequence import Sequence
from engine.types import AdapterRef, Request, Tenant
from tests.support.world import adapter


def sequence(order: int, ref: AdapterRef | None = None, tenant: str = "t") -> Sequence:
    return Sequence(Request(f"r{order}", Tenant(tenant), ref, (1,), 1), 0.0, order, [1])


def test_the_oldest_of_those_that_can_go_is_the_head() -> None:
    queue = WaitingQueue()
    ref = adapter("a")
    for item in (sequence(0, ref), sequence(1), sequence(2, ref), sequence(3)):
        queue.push(item)
    assert queue.head("t").order == 1
    assert (len(queue), queue.num_warming) == (4, 2)
    queue.set_open(ref.key, True)
    assert queue.head("t").order == 0 and queue.num_warming == 0
    queue.set_open(ref.key, False)
    assert queue.head("t").order == 1
    queue.check()


def test_a_preempted_one_goes_back_to_the_head_the_older_first() -> None:
    queue = WaitingQueue()
    queue.push(sequence(5))
    for order in (4, 3):
        queue.push_front(sequence(order))
    queue.check()
    assert queue.head("t").order == 3


def test_a_tenant_whose_requests_all_warm_is_not_ready() -> None:
    queue = WaitingQueue()
    ref = adapter("a")
    waiting = sequence(0, ref)
    queue.push(waiting)
    assert queue.head("t") is None and not queue.ready_tenants()
    queue.set_open(ref.key, True)
    assert set(queue.ready_tenants()) == {"t"}
    assert queue.waiting_for(ref.key) == [waiting]
    queue.remove(waiting)
    assert not queue.ready_tenants() and len(queue) == 0
    queue.check()
    with pytest.raises(KeyError):
        queue.remove(waiting)


def test_the_mean_wait_is_of_those_that_wait() -> None:
    queue = WaitingQueue()
    assert queue.mean_wait_s(9.0) == 0.0
    early, late = (
        Sequence(Request(name, Tenant("t"), None, (1,), 1), at, order, [1])
        for order, (name, at) in enumerate((("early", 1.0), ("late", 4.0)))
    )
    queue.push(early)
    queue.push(late)
    assert queue.mean_wait_s(5.0) == 2.5
    queue.remove(early)
    assert queue.mean_wait_s(5.0) == 1.0
    queue.remove(late)
    assert queue.mean_wait_s(5.0) == 0.0

"""Admission: two bounds a tenant, counters that move once, a Retry-After that comes true."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.errors import InvalidRequest, TooManyRequests
from engine.types import Tenant
from router.admission import Admission, Ticket

ACME = Tenant("acme", max_concurrent=4, max_queued=2)
WIDE = Tenant("acme", max_concurrent=4, max_queued=100)


@pytest.fixture
def admission(clock):
    admission = Admission(clock)
    yield admission
    admission.check()


def test_concurrency_is_bounded_per_tenant(admission) -> None:
    for _ in range(4):
        admission.admit(WIDE).started()
    with pytest.raises(TooManyRequests, match="4 sequences in progress; your limit is 4"):
        admission.admit(WIDE)
    admission.admit(Tenant("other", max_concurrent=1))
    assert admission.num_in_progress("acme") == 4


def test_waiting_for_a_first_token_is_bounded_apart(admission) -> None:
    first = admission.admit(ACME)
    admission.admit(ACME)
    with pytest.raises(TooManyRequests, match="2 sequences waiting for their first token"):
        admission.admit(ACME)
    first.started()
    admission.admit(ACME)
    assert (admission.num_in_progress("acme"), admission.num_queued("acme")) == (3, 2)


def test_a_refusal_changes_nothing(admission) -> None:
    admission.admit(WIDE, num=3)
    with pytest.raises(TooManyRequests):
        admission.admit(WIDE, num=2)
    assert (admission.num_in_progress("acme"), admission.num_queued("acme")) == (3, 3)


def test_releasing_twice_counts_once(admission) -> None:
    with admission.admit(WIDE, num=2) as ticket:
        ticket.started()
        ticket.release()
    ticket.release()
    ticket.started()
    assert (admission.num_in_progress("acme"), admission.num_queued("acme")) == (0, 0)


def test_leaving_by_an_error_releases(admission) -> None:
    with pytest.raises(RuntimeError, match="lost"), admission.admit(WIDE):
        raise RuntimeError("lost")
    assert admission.num_in_progress("acme") == 0


def test_started_more_often_than_there_are_sequences_does_nothing(admission) -> None:
    ticket = admission.admit(WIDE, num=2)
    for _ in range(5):
        ticket.started()
    assert (admission.num_in_progress("acme"), admission.num_queued("acme")) == (2, 0)


def test_more_than_the_limit_in_one_request_is_not_worth_retrying(admission) -> None:
    with pytest.raises(InvalidRequest, match="your limit is 2"):
        admission.admit(ACME, num=3)
    assert admission.num_in_progress("acme") == 0


def test_retry_after_comes_true_at_a_steady_rate(admission, clock) -> None:
    """Four at a time, one ends each 0.5 s: one more fits in 0.5 s, two in 1 s."""
    tickets = [admission.admit(WIDE) for _ in range(4)]
    for _ in range(40):
        clock.advance(0.5)
        tickets.pop(0).release()
        tickets.append(admission.admit(WIDE))
    for num in (1, 2):
        with pytest.raises(TooManyRequests) as refused:
            admission.admit(WIDE, num)
        assert refused.value.retry_after_s == pytest.approx(0.5 * num, rel=0.05)
    clock.advance(0.5)
    tickets.pop(0).release()
    admission.admit(WIDE)


def test_retry_after_of_the_queue_follows_the_rate_of_first_tokens(admission, clock) -> None:
    tenant = Tenant("acme", max_concurrent=1000, max_queued=2)
    waiting = [admission.admit(tenant), admission.admit(tenant)]
    for _ in range(20):
        clock.advance(2)
        waiting.pop(0).started()
        waiting.append(admission.admit(tenant))
    with pytest.raises(TooManyRequests) as refused:
        admission.admit(tenant)
    assert refused.value.retry_after_s == pytest.approx(2, rel=0.1)
    assert refused.value.info().status == 429


def test_retry_after_without_any_completion_is_as_long_as_it_took_so_far(admission, clock) -> None:
    admission.admit(WIDE, num=4).started()
    clock.advance(7)
    with pytest.raises(TooManyRequests) as refused:
        admission.admit(WIDE)
    assert refused.value.retry_after_s == pytest.approx(7)


@pytest.mark.parametrize(("waited_s", "told_s"), [(0.0, 0.1), (500.0, 60.0)])
def test_retry_after_stays_between_its_bounds(admission, clock, waited_s, told_s) -> None:
    admission.admit(WIDE, num=4)
    clock.advance(waited_s)
    with pytest.raises(TooManyRequests) as refused:
        admission.admit(WIDE)
    assert refused.value.retry_after_s == told_s


def test_limits_are_those_of_the_tenant_as_it_is_now(admission) -> None:
    admission.admit(WIDE, num=4)
    admission.admit(Tenant("acme", max_concurrent=5, max_queued=100))


class AnyOrder(RuleBasedStateMachine):
    """However admissions, starts and ends interleave: bounds hold, nothing counts twice."""

    tenants = st.sampled_from([ACME, WIDE, Tenant("b", max_concurrent=3, max_queued=3)])

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.admission = Admission(lambda: self.now)
        self.tickets: list[Ticket] = []

    @rule(tenant=tenants, num=st.integers(1, 2))
    def admit(self, tenant: Tenant, num: int) -> None:
        in_progress = self.admission.num_in_progress(tenant.id)
        queued = self.admission.num_queued(tenant.id)
        fits = in_progress + num <= tenant.max_concurrent and queued + num <= tenant.max_queued
        try:
            self.tickets.append(self.admission.admit(tenant, num))
        except TooManyRequests as refused:
            assert not fits
            assert 0.1 <= refused.retry_after_s <= 60
        else:
            assert fits

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(data=st.data())
    def started(self, data: st.DataObject) -> None:
        if self.tickets:
            data.draw(st.sampled_from(self.tickets)).started()

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.tickets:
            data.draw(st.sampled_from(self.tickets)).release()

    @invariant()
    def holds(self) -> None:
        self.admission.check()

    def teardown(self) -> None:
        for ticket in self.tickets:
            ticket.release()
        self.admission.check()
        assert not any(map(self.admission.num_in_progress, ("acme", "b")))


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=30)

"""Accounts: values worked out by hand, and what must hold whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.accounts import MAX_IDLE
from engine.expectation import HISTORY
from engine.types import Tenant
from tests.support.accounting import W_P, W_Q, A, B, C, accounts, serve, state


def test_a_request_is_charged_when_admitted_and_settled_as_it_is_served() -> None:
    books = accounts()
    books.arrive("r", A)
    assert state(books, A) == (0, 0)
    books.admit("r", num_prompt=100, max_tokens=10)
    assert state(books, A) == (0, 100 + 2 * 10)
    books.computed("r", 60)
    assert state(books, A) == (60, 60)
    books.computed("r", 40)
    books.produced("r", 1)
    assert state(books, A) == (102, 18)
    books.produced("r", 9)
    books.finish("r", completed=True)
    assert state(books, A) == (120, 0)


def test_what_was_expected_and_not_produced_is_refunded() -> None:
    books = accounts()
    books.arrive("other", A)
    books.arrive("r", A)
    books.admit("r", num_prompt=10, max_tokens=1000)
    assert state(books, A) == (0, 10 + 2 * 256)
    books.computed("r", 10)
    books.produced("r", 6)
    books.finish("r", completed=True)
    assert state(books, A) == (10 + 2 * 6, 0)


def test_output_beyond_the_expected_is_charged_token_by_token() -> None:
    books = accounts()
    serve(books, "past", A, num_prompt=1, num_out=3)
    books.arrive("r", A)
    assert books.expected_output("a") == 3
    books.admit("r", num_prompt=0, max_tokens=100)
    start, outstanding = state(books, A)
    assert outstanding == 2 * 3
    for produced in range(1, 6):
        books.produced("r")
        settled, outstanding = state(books, A)
        assert settled == start + 2 * produced
        assert settled + outstanding == start + 2 * max(3, produced)
    books.finish("r", completed=True)
    assert state(books, A) == (start + 10, 0)


def test_a_prompt_is_refunded_only_as_far_as_it_was_not_computed() -> None:
    books = accounts()
    books.arrive("r", A)
    books.admit("r", num_prompt=100, max_tokens=10)
    books.computed("r", 30)
    books.finish("r", completed=False)
    assert state(books, A) == (30, 0)


def test_a_request_that_was_never_admitted_costs_nothing() -> None:
    books = accounts()
    books.arrive("r", A)
    books.finish("r", completed=False)
    assert state(books, A) == (0, 0) and books.order() == []


def test_a_preempted_request_is_not_charged_again() -> None:
    books = accounts()
    books.arrive("r", A)
    books.admit("r", num_prompt=100, max_tokens=10)
    books.computed("r", 100)
    books.produced("r", 4)
    books.admit("r", num_prompt=104, max_tokens=10)
    books.computed("r", 104)
    assert state(books, A) == (108, 12)


def test_values_are_divided_by_the_weight() -> None:
    books = accounts()
    heavy = Tenant("h", weight=4.0)
    serve(books, "r", heavy, num_prompt=100, num_out=10)
    assert state(books, heavy) == (30, 0)


def test_the_expected_output_is_the_90th_percentile_of_those_completed() -> None:
    books = accounts()
    assert books.expected_output("a") == 256
    for length in [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]:
        serve(books, "r", A, 1, length)
    assert books.expected_output("a") == 90
    books.arrive("r", A)
    books.finish("r", completed=False)
    assert books.expected_output("a") == 90, "an aborted request says nothing"
    for _ in range(HISTORY):
        serve(books, "r", A, 1, 7)
    assert books.expected_output("a") == 7 and books.expected_output("b") == 256


# Lift


def test_a_tenant_back_from_idle_begins_at_the_least_settled_of_the_others() -> None:
    books = accounts()
    for request_id, tenant, num_prompt in (("b", B, 500), ("c", C, 900)):
        books.arrive(request_id, tenant)
        books.admit(request_id, num_prompt, 10)
        books.computed(request_id, num_prompt)
    books.arrive("a", A)
    assert state(books, A) == (500, 0) and books.account("a").floor == 500
    assert books.order() == ["a", "b", "c"]  # 500; 500 + 20 outstanding; 920


def test_a_lift_never_lowers_an_account() -> None:
    books = accounts()
    serve(books, "r", A, 1000, 10)
    books.arrive("b", B)
    assert state(books, B) == (1020, 0), "nobody else has work: where the last to go idle stood"
    books.arrive("a", A)
    assert state(books, A) == (1020, 0)
    serve(books, "c", C, 1, 1)
    books.arrive("a2", A)
    assert state(books, A) == (1020, 0)


def test_a_tenant_is_lifted_while_it_runs_but_not_while_it_waits() -> None:
    """Else a lone long request would bank what others are served meanwhile."""
    books = accounts()
    for name in ("b", "more of b"):
        books.arrive(name, B)
    books.arrive("a1", A)
    books.admit("b", 700, 10)
    books.computed("b", 700)
    books.arrive("a2", A)
    assert state(books, A) == (0, 0)
    for name in ("a1", "a2"):
        books.admit(name, 10, 10)
    books.arrive("a3", A)
    assert state(books, A)[0] == 700


def test_no_refund_takes_an_account_below_where_it_was_lifted_to() -> None:
    books = accounts(charge="budget")
    for name in ("b", "more of b"):
        books.arrive(name, B)
    books.admit("b", 700, 10)
    books.computed("b", 700)
    books.arrive("long", A)
    books.admit("long", 10, 4096)
    assert state(books, A) == (700, 10 + 2 * 4096)
    books.finish("long", completed=False)
    assert state(books, A) == (700, 0)


def test_a_load_is_charged_by_its_bytes_and_weight() -> None:
    books = accounts(w_load=2.0)
    heavy = Tenant("h", weight=4.0)
    books.arrive("r", heavy)
    books.loaded("h", 6 << 20)
    books.loaded("unknown", 6 << 20)
    assert state(books, heavy) == (3, 0) and books.account("h").served == 12


def test_a_weight_that_changes_counts_from_then_on() -> None:
    books = accounts()
    serve(books, "r", Tenant("a", weight=2.0), num_prompt=100, num_out=0)
    books.arrive("r2", A)
    books.admit("r2", 100, 1)
    books.computed("r2", 100)
    assert state(books, A)[0] == 50 + 100 and books.account("a").served == 200


def test_under_vtc_only_what_is_served_counts() -> None:
    books = accounts(order="vtc")
    books.arrive("r", A)
    books.admit("r", 100, 50)
    assert state(books, A) == (0, 100)
    books.computed("r", 100)
    books.produced("r", 2)
    assert state(books, A) == (104, 0)


def test_tokens_settled_together_are_settled_as_one_by_one() -> None:
    one, many = accounts(default_output=2), accounts(default_output=2)
    for books in (one, many):
        for name, tenant in (("a1", A), ("a2", A), ("b", B)):
            books.arrive(name, tenant)
            books.admit(name, 3, 10)
    for name in ("a1", "a2", "b"):
        many.produced(name, 4)
        for _ in range(4):
            one.produced(name)
        assert [state(many, t) for t in (A, B)] == [state(one, t) for t in (A, B)]
    assert many.order() == one.order()


def test_the_longest_idle_of_very_many_tenants_is_forgotten() -> None:
    books = accounts()
    serve(books, "first", A, 10, 5)
    for i in range(MAX_IDLE):
        name = f"t{i}"
        books.arrive(name, Tenant(name))
        books.finish(name, completed=False)
        if i == 0:
            serve(books, "again", B, 10, 5)
    books.check()
    with pytest.raises(KeyError):
        books.account(A.id)
    assert state(books, B) == (40, 0)
    serve(books, "back", A, 1, 1)
    assert state(books, A) == (43, 0), "it begins where the last to go idle stood"


class AccountMachine(RuleBasedStateMachine):
    """Conservation: what an account grew by is what was served, and what it was lifted by."""

    def __init__(self) -> None:
        super().__init__()
        self.books = accounts()
        self.tenants = [Tenant("a"), Tenant("b", weight=2.0), Tenant("c", weight=0.5)]
        self.live: dict[str, Tenant] = {}
        self.admitted: set[str] = set()
        self.left: dict[str, int] = {}
        self.expected: dict[str, float] = {t.id: 0.0 for t in self.tenants}
        self.count = 0

    def pick(self, which: int, among: set[str] | None = None) -> str:
        choices = sorted(self.live if among is None else among)
        return choices[which % len(choices)]

    @rule(which=st.integers(0, 2))
    def arrives(self, which: int) -> None:
        tenant = self.tenants[which]
        self.count += 1
        request_id = f"r{self.count}"
        working = {t.id for t in self.live.values()}
        waiting = {t.id for r, t in self.live.items() if r not in self.admitted}
        others = waiting or working - {tenant.id}
        settled = [self.books.account(t).settled for t in others]
        self.books.arrive(request_id, tenant)
        self.live[request_id] = tenant
        account = self.books.account(tenant.id)
        if tenant.id not in waiting:
            assert account.settled >= self.expected[tenant.id] - 1e-6
            if settled:
                lifted = max(self.expected[tenant.id], min(settled))
                assert account.settled == pytest.approx(lifted)
            self.expected[tenant.id] = account.settled

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99), num_prompt=st.integers(0, 50), max_tokens=st.integers(1, 400))
    def is_admitted(self, which: int, num_prompt: int, max_tokens: int) -> None:
        request_id = self.pick(which)
        before = self.books.account(self.live[request_id].id).value
        self.books.admit(request_id, num_prompt, max_tokens)
        if request_id in self.admitted:
            assert self.books.account(self.live[request_id].id).value == before
        else:
            self.admitted.add(request_id)
            self.left[request_id] = num_prompt

    @precondition(lambda self: self.admitted)
    @rule(which=st.integers(0, 99), num_prompt=st.integers(0, 60), num_output=st.integers(0, 60))
    def is_served(self, which: int, num_prompt: int, num_output: int) -> None:
        request_id = self.pick(which, self.admitted)
        tenant = self.live[request_id]
        self.books.computed(request_id, num_prompt)
        self.books.produced(request_id, num_output)
        first = min(num_prompt, self.left[request_id])
        self.left[request_id] -= first
        self.expected[tenant.id] += (W_P * first + W_Q * num_output) / tenant.weight

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99), completed=st.booleans())
    def finishes(self, which: int, completed: bool) -> None:
        request_id = self.pick(which)
        tenant = self.live.pop(request_id)
        floor = self.books.account(tenant.id).floor
        self.books.finish(request_id, completed=completed)
        self.admitted.discard(request_id)
        account = self.books.account(tenant.id)
        assert account.value >= floor - 1e-6
        if tenant not in self.live.values():
            assert account.outstanding == 0

    @invariant()
    def books_are_right(self) -> None:
        self.books.check()
        values = [self.books.account(t).value for t in self.books.order()]
        assert values == pytest.approx(sorted(values))
        waiting = [a.value for a in self.books.with_work() if a.num_waiting]
        spread = max(waiting) - min(waiting) if waiting else 0.0
        assert self.books.spread() == pytest.approx(spread, abs=1e-6)
        for tenant, settled in self.expected.items():
            if tenant in self.books._accounts:
                assert self.books.account(tenant).settled == pytest.approx(settled, abs=1e-6)


TestAccountMachine = AccountMachine.TestCase
TestAccountMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_refund_does_not_undo_the_lift() -> None:
    """Charge much, finish at once, come back: the account stands where it was lifted to."""
    books = accounts()
    books.arrive("other", B)
    books.admit("other", 5000, 10)
    books.computed("other", 5000)
    for turn in range(20):
        books.arrive(f"r{turn}", A)
        assert state(books, A)[0] >= 5000
        books.admit(f"r{turn}", 100, 4000)
        books.finish(f"r{turn}", completed=False)
        assert state(books, A) == (5000, 0)

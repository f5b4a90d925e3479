"""Accounts: values worked out by hand, and what must hold whatever happens."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.accounts import MAX_IDLE, Accounts
from engine.config import AccountConfig
from engine.expectation import HISTORY
from engine.orders import MAX_LOOKS, NEAR_EQUALS, Ages, Entries, Turns, locality_score
from engine.prices import prices_of
from engine.types import Tenant

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")
W_P, W_Q = 1.0, 2.0


def accounts(**fields: object) -> Accounts:
    config = replace(AccountConfig(w_p=W_P, w_q=W_Q, default_output=256), **fields)  # type: ignore[arg-type]
    return Accounts(config, prices_of(config, 100))


class Waiting:
    """What tenants wait for: `orders` of the next request of each."""

    def __init__(self, orders: dict[str, float] | None = None) -> None:
        self.orders = orders or {}
        self.num_asked = 0

    def age(self, tenant: str) -> float:
        self.num_asked += 1
        return self.orders[tenant]

    def by_age(self) -> Entries:
        return sorted((order, tenant) for tenant, order in self.orders.items())


def turns_of(books: Accounts, tenants: set[str]) -> Turns:
    return books.turns(tenants, aged=Waiting())


def serve(books: Accounts, request_id: str, tenant: Tenant, num_prompt: int, num_out: int) -> None:
    """A whole request, ending by itself."""
    books.arrive(request_id, tenant)
    books.admit(request_id, num_prompt, num_out)
    books.computed(request_id, num_prompt)
    books.produced(request_id, num_out)
    books.finish(request_id, completed=True)
    books.check()


def state(books: Accounts, tenant: Tenant) -> tuple[float, float]:
    books.check()
    account = books.account(tenant.id)
    return account.settled, account.outstanding


# Charge, top-up, refund


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


def test_under_fcfs_the_oldest_request_goes_first_and_everybody_stands_alike() -> None:
    books = accounts(order="fcfs")
    for tenant, num_prompt in ((A, 500), (B, 0), (C, 10)):
        books.arrive(tenant.id, tenant)
        books.admit(tenant.id, num_prompt, 1)
    turns = books.turns({"a", "b", "c"}, aged=Waiting({"a": 2.0, "b": 3.0, "c": 1.0}))
    assert [turns.next() for _ in range(4)] == ["c", "a", "b", None]
    assert {books.standing(tenant) for tenant in "abc"} == {0.0}


def test_under_fcfs_nobody_is_asked_but_those_whose_turn_it_is() -> None:
    """Of ten thousand; what the oldest wait for has changed since they were put in order."""
    books = accounts(order="fcfs")
    waiting = Waiting({f"t{i:05}": float(i) for i in range(10_000)})
    turns = books.turns(waiting.orders.keys(), aged=waiting)
    waiting.orders |= {"t00000": 2.5, "t00002": 20_000.0}
    assert [turns.next() for _ in range(3)] == ["t00001", "t00000", "t00003"]
    waiting.orders["t00001"] = 3.5
    turns.again("t00001")
    assert [turns.next() for _ in range(2)] == ["t00001", "t00004"]
    assert waiting.num_asked < 12


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9)), max_size=30))
def test_ages_are_in_order_whatever_changes(changes: list[tuple[str, int | None]]) -> None:
    ages, orders = Ages(), dict[str, float]()
    for tenant, order in changes:
        ages.put(tenant, order)
        if order is None:
            orders.pop(tenant, None)
        else:
            orders[tenant] = order
        ages.check(orders)
    assert ages.ascending() == sorted((order, tenant) for tenant, order in orders.items())


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


def test_looking_for_candidates_is_bounded() -> None:
    books = accounts()
    names = [f"t{i:04}" for i in range(500)]
    for name in names:
        books.arrive(name, Tenant(name))
    asked: list[str] = []
    turns = books.turns(
        set(names),
        aged=Waiting(),
        is_candidate=lambda t: bool(asked.append(t)),
        max_looks=MAX_LOOKS,
    )
    assert turns.next() is None and len(asked) == MAX_LOOKS + 1


# Order, turns, share


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


def test_the_order_follows_settled_plus_outstanding() -> None:
    books = accounts()
    for request_id, tenant in (("a", A), ("b", B), ("c", C)):
        books.arrive(request_id, tenant)
    books.admit("a", 100, 10)
    books.admit("b", 50, 10)
    assert books.order() == ["c", "b", "a"]
    books.admit("c", 90, 10)
    assert books.order() == ["b", "c", "a"]
    books.finish("a", completed=False)
    assert books.order() == ["b", "c"]


def test_turns_follow_the_accounts_as_they_change() -> None:
    books = accounts()
    for tenant in (A, B, C):
        for turn in range(3):
            books.arrive(f"{tenant.id}{turn}", tenant)
    books.admit("b0", 100, 1)
    turns = turns_of(books, {"a", "b"})
    assert turns.next() == "a"
    books.admit("a0", 150, 1)
    turns.again("a")
    assert turns.next() == "b"
    assert turns.next() == "a", "a tenant that isn't brought back holds up nobody"
    assert turns.next() is None


def test_locality_chooses_among_near_equals_only() -> None:
    books = accounts(locality_slack_tokens=10.0)
    for tenant, num_prompt in ((A, 0), (B, 8), (C, 13)):
        books.arrive(tenant.id, tenant)
        books.admit(tenant.id, num_prompt, 1)
    score = {"a": 0.0, "b": 1.0, "c": 9.0}
    turns = turns_of(books, {"a", "b", "c"})
    assert [turns.next(score.__getitem__) for _ in range(4)] == ["b", "a", "c", None]
    assert turns_of(books, {"a", "b"}).next(lambda tenant: 0.0) == "a", (
        "of equals the least account"
    )


def test_locality_looks_at_a_bounded_number_of_tenants() -> None:
    books = accounts()
    tenants = [Tenant(f"t{i:04}") for i in range(1000)]
    for tenant in tenants:
        books.arrive(tenant.id, tenant)
    asked: list[str] = []
    turns = turns_of(books, {tenant.id for tenant in tenants})
    turns.next(lambda tenant: float(asked.append(tenant) or 0))
    assert len(asked) <= 2 * NEAR_EQUALS


def test_locality_outweighs_a_stated_wait_and_no_more() -> None:
    resident = locality_score(0.001, wait_s=1.0, num_tokens=500, in_batch=True)
    assert locality_score(0.001, 1.4, 500, False) < resident
    assert locality_score(0.001, 1.6, 500, False) > resident


def test_shares_are_by_the_weights_of_those_with_work_and_at_least_one() -> None:
    books = accounts()
    tenants = [Tenant(str(weight), weight=weight) for weight in (1.0, 2.0, 3.0, 4.0)]
    for tenant in tenants:
        books.arrive(tenant.id, tenant)
    assert [books.share(tenant.id, 40) for tenant in tenants] == [4, 8, 12, 16]
    assert [books.share(tenant.id, 3) for tenant in tenants] == [1, 1, 1, 1]
    books.finish("4.0", completed=False)
    assert [books.share(tenant.id, 60) for tenant in tenants[:3]] == [10, 20, 30]
    assert books.share("4.0", 60) == 24, "as if it came back now"


# Whatever happens


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


# A small server: rows, one token a row a step, prompts in chunks; service by account order


@dataclass
class Job:
    id: str
    tenant: Tenant
    prompt: int
    max_tokens: int
    output: int  # what it will really produce
    prompt_left: int = 0
    produced: int = 0


@dataclass
class Server:
    """Depth 0, `rows` rows, `chunk` prompt tokens a step. service: weighted tokens by tenant."""

    books: Accounts
    rows: int = 8
    chunk: int = 64
    queues: dict[str, deque[Job]] = field(default_factory=dict)
    running: list[Job] = field(default_factory=list)
    service: dict[str, float] = field(default_factory=dict)
    num_jobs: int = 0

    def submit(self, job: Job) -> None:
        self.queues.setdefault(job.tenant.id, deque()).append(job)
        self.service.setdefault(job.tenant.id, 0.0)
        self.books.arrive(job.id, job.tenant)

    def cancel(self, tenant: str) -> None:
        """The tenant's client gives up all that runs."""
        for job in [job for job in self.running if job.tenant.id == tenant]:
            self.running.remove(job)
            self.books.finish(job.id, completed=False)

    def step(self) -> None:
        turns = turns_of(self.books, {t for t, queue in self.queues.items() if queue})
        while len(self.running) < self.rows and (tenant := turns.next()) is not None:
            job = self.queues[tenant].popleft()
            job.prompt_left = job.prompt
            self.books.admit(job.id, job.prompt, job.max_tokens)
            self.running.append(job)
            if self.queues[tenant]:
                turns.again(tenant)
        budget = self.chunk
        for job in list(self.running):
            if job.prompt_left:
                num_tokens = min(job.prompt_left, budget)
                budget -= num_tokens
                job.prompt_left -= num_tokens
                self.books.computed(job.id, num_tokens)
                self.service[job.tenant.id] += W_P * num_tokens
            else:
                job.produced += 1
                self.books.produced(job.id)
                self.service[job.tenant.id] += W_Q
                if job.produced >= min(job.output, job.max_tokens):
                    self.running.remove(job)
                    self.books.finish(job.id, completed=True)


def run(
    server: Server, tenants: list[Tenant], make: Callable[[Tenant, int], Job], steps: int
) -> None:
    """Every tenant always has a batch's worth of requests waiting. `make(tenant, n)`: job n."""
    for _ in range(steps):
        for tenant in tenants:
            while len(server.queues.get(tenant.id, ())) < server.rows:
                server.num_jobs += 1
                server.submit(make(tenant, server.num_jobs))
        server.step()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    long=st.tuples(st.integers(1, 200), st.integers(1, 120)),
    short=st.tuples(st.integers(1, 200), st.integers(1, 120)),
)
def test_two_backlogged_equals_stay_within_the_vtc_bound(
    seed: int, long: tuple[int, int], short: tuple[int, int]
) -> None:
    """|W_a - W_b| <= 2 max(w_p L, w_q M): L the longest prompt, M the tokens a batch can hold."""
    rng = random.Random(seed)
    sizes = {"a": long, "b": short}
    server = Server(accounts())
    max_prompt = max(long[0], short[0])
    batch_tokens = server.rows * max(sum(long), sum(short))
    bound = 2 * max(W_P * max_prompt, W_Q * batch_tokens)

    def make(tenant: Tenant, count: int) -> Job:
        num_prompt, num_output = sizes[tenant.id]
        return Job(f"r{count}", tenant, num_prompt, 256, rng.randint(1, num_output))

    for _ in range(40):
        run(server, [A, B], make, 25)
        assert abs(server.service["a"] - server.service["b"]) <= bound
        server.books.check()


def test_backlogged_tenants_are_served_by_their_weights() -> None:
    rng = random.Random(3)
    tenants = [Tenant(str(weight), weight=float(weight)) for weight in (1, 2, 3, 4)]
    server = Server(accounts())
    run(server, tenants, lambda t, c: Job(f"r{c}", t, 40, 100, rng.randint(10, 60)), 12_000)
    total = sum(server.service.values())
    for tenant in tenants:
        assert server.service[tenant.id] == pytest.approx(total * tenant.weight / 10, rel=0.05)
    server.books.check()


def test_a_tenant_that_comes_and_goes_banks_nothing() -> None:
    """Away for a long time, then back: from then on it is served like the one that stayed."""
    server = Server(accounts())

    def make(tenant: Tenant, count: int) -> Job:
        return Job(f"r{count}", tenant, 40, 40, 40)

    run(server, [A, B], make, 500)
    while server.queues["a"] or any(job.tenant is A for job in server.running):
        server.step()
    for _ in range(4):
        run(server, [B], make, 2000)
        before = dict(server.service)
        run(server, [A, B], make, 1000)
        gained = {t: server.service[t] - before[t] for t in before}
        longest = server.rows * (W_P * 40 + W_Q * 40)
        assert abs(gained["a"] - gained["b"]) <= 2 * longest
        while server.queues["a"] or any(job.tenant is A for job in server.running):
            server.step()


@pytest.mark.parametrize("max_tokens", [1, 40, 4000])
@pytest.mark.parametrize("abort_after", [1, 5, 30])
def test_asking_for_much_and_giving_up_gains_nothing(max_tokens: int, abort_after: int) -> None:
    """A client that cancels all it has and asks again, over and over, gets no more service than
    the honest one beside it, but for what a batch holds."""
    server = Server(accounts())

    def make(tenant: Tenant, count: int) -> Job:
        return Job(f"r{count}", tenant, 30, 40 if tenant is A else max_tokens, 40)

    for _ in range(400):
        run(server, [A, B], make, abort_after)
        server.cancel("b")
        server.books.check()
    bound = 2 * server.rows * (W_P * 30 + W_Q * 40)
    assert server.service["b"] <= server.service["a"] + bound


def test_the_spread_of_accounts_is_found_at_the_ends_of_their_order() -> None:
    """Of 2,000 tenants the least of those who wait is behind 10 without, and the largest ahead of
    10: the values of two accounts are looked at."""
    books = accounts()
    for number in range(2000):
        tenant = Tenant(f"t{number:04}")
        books.arrive(str(number), tenant)
        books.account(tenant.id).settled = float(number)
        books.served_elsewhere(tenant.id, 0.0)
        if number < 10 or number >= 1990:
            books.admit(str(number), 0, 0)
    books.order()
    value = type(books.account("t0000")).value.fget.__code__  # type: ignore[attr-defined]
    looks = 0

    def count(frame, event, _):  # type: ignore[no-untyped-def]
        nonlocal looks
        looks += event == "call" and frame.f_code is value

    sys.setprofile(count)
    try:
        spread = books.spread()
    finally:
        sys.setprofile(None)
    assert spread == 1989 - 10 and looks == 2


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

"""Service in the order of accounts: a small server of rows, one token a row a step."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.accounts import Accounts
from engine.types import Tenant
from tests.support.accounting import W_P, W_Q, A, B, accounts, turns_of


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

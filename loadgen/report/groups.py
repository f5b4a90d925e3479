"""Requests of a tenant, or of a tenth of the adapters, told together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from loadgen.client.outcome import Outcome
from loadgen.report.slo import Slo
from loadgen.report.stats import Quantiles

NUM_DECILES = 10


@dataclass(frozen=True, slots=True)
class Group:
    """Seconds throughout.

    requests    that were due
    ok, good    of them, whole answers; those within the SLO
    first       from due to the first token
    gap         between pieces of text as they came
    token       a token after the first, on average over an answer
    """

    name: str
    num_adapters: int
    requests: int
    ok: int
    good: int
    prompt_tokens: int
    completion_tokens: int
    first: Quantiles | None
    gap: Quantiles | None
    token: Quantiles | None

    @classmethod
    def of(cls, name: str, outcomes: Iterable[Outcome], slo: Slo) -> Self:
        members = list(outcomes)
        return cls(
            name=name,
            num_adapters=len({(o.tenant, o.adapter) for o in members}),
            requests=len(members),
            ok=sum(o.ok for o in members),
            good=sum(slo.met(o) for o in members),
            prompt_tokens=sum(o.prompt_tokens for o in members),
            completion_tokens=sum(o.completion_tokens for o in members),
            first=Quantiles.of(o.first_s for o in members if o.first_s is not None),
            gap=Quantiles.of(gap for o in members for gap in o.gaps_s),
            token=Quantiles.of(t for o in members if (t := o.token_s) is not None),
        )


def by_tenant(outcomes: Sequence[Outcome], slo: Slo) -> list[Group]:
    """By name."""
    members: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        members.setdefault(outcome.tenant, []).append(outcome)
    return [Group.of(tenant, members[tenant], slo) for tenant in sorted(members)]


def deciles(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Requests by their adapter's popularity: the first tenth of the adapters is the most asked
    for. Of fewer than ten adapters each is a part of its own."""
    counts = Counter((o.tenant, o.adapter) for o in outcomes)
    ranked = sorted(counts, key=lambda key: (-counts[key], key))
    parts = np.array_split(np.arange(len(ranked)), min(NUM_DECILES, len(ranked)) or 1)
    place = {ranked[i]: number for number, part in enumerate(parts) for i in part}
    members: list[list[Outcome]] = [[] for _ in parts]
    for outcome in outcomes:
        members[place[outcome.tenant, outcome.adapter]].append(outcome)
    return members


def by_decile(outcomes: Sequence[Outcome], slo: Slo) -> list[Group]:
    """Named 1 (the most popular) and on."""
    return [
        Group.of(str(number), members, slo)
        for number, members in enumerate(deciles(outcomes), start=1)
    ]


def least_popular_tenants(outcomes: Sequence[Outcome], slo: Slo) -> Group:
    """The tenth of the tenants with the fewest requests, pooled: whom an average forgets."""
    counts = Counter(o.tenant for o in outcomes)
    ranked = sorted(counts, key=lambda tenant: (counts[tenant], tenant))
    chosen = set(ranked[: math.ceil(len(ranked) / NUM_DECILES)])
    members = [o for o in outcomes if o.tenant in chosen]
    return Group.of(f"{len(chosen)} least popular", members, slo)

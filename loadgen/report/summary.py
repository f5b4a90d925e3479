"""All that a report says, computed once; every form of it reads this."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.client.outcome import NOT_SENT, OK, Outcome
from loadgen.client.run import Facts, Run
from loadgen.report.groups import Group, by_decile, by_tenant, least_popular_tenants
from loadgen.report.server import Server, read_server
from loadgen.report.slo import Slo
from loadgen.report.stats import Quantiles, jain
from loadgen.report.timeline import OUTPUT_WEIGHT, Timeline, timeline

MAX_LAG_S = 0.005
"""A generator whose p99 is above it has had a part in the latencies that it reports."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Requests by what became of them, all but the good ones; retry_after_s: as 429 and 503 asked
    to wait; example: an error's words, by kind."""

    by_kind: Mapping[str, int]
    examples: Mapping[str, str]
    retry_after_s: Quantiles | None


@dataclass(frozen=True, slots=True)
class Report:
    """seconds throughout.

    whole         all requests as one group
    unpopular     the least popular tenth of the tenants, pooled
    cold          first token of each adapter's first request: loads are in it
    goodput       requests within the SLO, a second
    tokens_per_s  of answers
    jain_service  of all tenants' service over their weight, demand or not
    lag           how late the generator sent
    adapters      different adapters being answered at once, as the client sees it
    input_ratio   prompt tokens that the server counted, of those asked for
    estimated     answers whose tokens had to be counted by pieces of text
    """

    facts: Facts
    slo: Slo
    whole: Group
    tenants: Sequence[Group]
    deciles: Sequence[Group]
    unpopular: Group
    cold: Quantiles | None
    goodput: float
    requests_per_s: float
    tokens_per_s: float
    jain_service: float | None
    lag: Quantiles | None
    adapters: Quantiles | None
    input_ratio: float | None
    estimated: int
    errors: Errors
    server: Server | None
    timeline: Timeline

    def to_json(self) -> dict[str, Any]:
        """Plain values; the timeline's arrays as lists, with null for none."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["timeline"]
        values = {name: _plain(value) for name, value in fields.items()}
        values["jain_contended"] = self.timeline.jain_contended
        values["hit_rates"] = {} if self.server is None else self.server.hit_rates
        line = self.timeline
        values["timeline"] = {
            "window_s": line.window_s,
            "tenants": list(line.tenants),
            "service": line.service.round(3).tolist(),
            "jain": [None if math.isnan(j) else round(j, 6) for j in line.jain.tolist()],
            **{
                name: getattr(line, name).round(6).tolist()
                for name in ("due", "good", "failed", "tokens", "running", "adapters")
            },
        }
        return values


def summarise(run: Run, slo: Slo) -> Report:
    outcomes, facts = run.outcomes, run.facts
    wall_s = max(facts.wall_s, 1e-3)
    sent = [o for o in outcomes if o.status != NOT_SENT]
    whole = Group.of("all", outcomes, slo)
    line = timeline(outcomes, facts.weights, wall_s, slo)
    asked = sum(o.asked_input for o in sent if o.prompt_tokens)
    return Report(
        facts=facts,
        slo=slo,
        whole=whole,
        tenants=by_tenant(outcomes, slo),
        deciles=by_decile(outcomes, slo),
        unpopular=least_popular_tenants(outcomes, slo),
        cold=Quantiles.of(_first_of_each(sent)),
        goodput=whole.good / wall_s,
        requests_per_s=whole.ok / wall_s,
        tokens_per_s=whole.completion_tokens / wall_s,
        jain_service=jain(_service(outcomes, facts.weights)),
        lag=Quantiles.of(o.lag_s for o in sent),
        adapters=Quantiles.of(line.adapters.tolist()),
        input_ratio=whole.prompt_tokens / asked if asked else None,
        estimated=sum(o.ok and o.counted != "usage" for o in outcomes),
        errors=_errors(outcomes),
        server=read_server(run.samples),
        timeline=line,
    )


def _first_of_each(sent: Sequence[Outcome]) -> list[float]:
    """The first token of each adapter's first request, by when it was due."""
    firsts: dict[tuple[str, str], Outcome] = {}
    for outcome in sorted(sent, key=lambda o: (o.due_s, o.index)):
        firsts.setdefault((outcome.tenant, outcome.adapter), outcome)
    return [o.first_s for o in firsts.values() if o.first_s is not None]


def _service(outcomes: Sequence[Outcome], weights: Mapping[str, float]) -> list[float]:
    served: dict[str, float] = {}
    for o in outcomes:
        tokens = o.prompt_tokens + OUTPUT_WEIGHT * o.completion_tokens
        served[o.tenant] = served.get(o.tenant, 0.0) + tokens / weights.get(o.tenant, 1.0)
    return list(served.values())


def _errors(outcomes: Sequence[Outcome]) -> Errors:
    bad = [o for o in outcomes if o.status != OK]
    return Errors(
        by_kind=dict(Counter(o.status for o in bad).most_common()),
        examples={o.status: o.detail for o in reversed(bad) if o.detail},
        retry_after_s=Quantiles.of(o.retry_after_s for o in bad if o.retry_after_s is not None),
    )


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value

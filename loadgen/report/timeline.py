"""A run in windows of time: what was due, what was served, and how fairly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.client.outcome import NOT_SENT, Outcome
from loadgen.report.slo import Slo
from loadgen.report.stats import jain

Floats = NDArray[np.float64]
NUM_WINDOWS = 60
STEPS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
OUTPUT_WEIGHT = 2.0
"""Of an answer's token, where a prompt's is 1: as VTC counts service."""
BUSY = 0.95
"""A tenant contends in a window if for this part of it some request of its was unanswered."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Windows of `window_s` from the run's start; arrays have one number for each.

    due, good, failed  requests that were due in it; of those, within the SLO, and with an error
    tokens        of answers, that came in it
    running       requests due and unanswered, on average over it
    adapters      different adapters being answered at its middle, as the client sees it
    service       [tenants, windows] prompt tokens (at the first token) + 2 * answer tokens, over
                  the tenant's weight
    contending    tenants that had work all through it
    jain          of the contending tenants' service; nan where there are fewer than two
    """

    window_s: float
    tenants: Sequence[str]
    due: Floats
    good: Floats
    failed: Floats
    tokens: Floats
    running: Floats
    adapters: Floats
    service: Floats
    contending: Floats
    jain: Floats

    @property
    def starts_s(self) -> Floats:
        return np.arange(len(self.due), dtype=np.float64) * self.window_s

    @property
    def jain_contended(self) -> float | None:
        """The mean over windows with at least two contending tenants; None without any."""
        known = self.jain[~np.isnan(self.jain)]
        return float(known.mean()) if known.size else None


def timeline(
    outcomes: Sequence[Outcome], weights: Mapping[str, float], wall_s: float, slo: Slo
) -> Timeline:
    """wall_s: the run's length."""
    window_s = next((s for s in STEPS_S if wall_s / s <= NUM_WINDOWS), STEPS_S[-1])
    count = max(1, int(np.ceil(wall_s / window_s)))
    tenants = sorted({o.tenant for o in outcomes})
    rows = {tenant: row for row, tenant in enumerate(tenants)}
    due, good, failed, tokens, running = (np.zeros(count) for _ in range(5))
    service, busy = np.zeros((len(tenants), count)), np.zeros((len(tenants), count))
    spans: list[list[tuple[float, float]]] = [[] for _ in tenants]

    def window(at_s: float) -> int:
        return min(max(int(at_s // window_s), 0), count - 1)

    for o in outcomes:
        w, row, weight = window(o.due_s), rows[o.tenant], weights.get(o.tenant, 1.0)
        due[w] += 1
        if o.status == NOT_SENT:
            continue
        good[w] += slo.met(o)
        failed[w] += not o.ok
        spans[row].append((o.due_s, o.due_s + o.end_s))
        if o.first_s is not None:
            service[row, window(o.due_s + o.first_s)] += o.prompt_tokens / weight
        for at_s, num_tokens in o.served():
            tokens[window(at_s)] += num_tokens
            service[row, window(at_s)] += OUTPUT_WEIGHT * num_tokens / weight
    for row, own in enumerate(spans):
        for span in own:
            _cover(running, span, window_s)
        for span in _union(own):
            _cover(busy[row], span, window_s)
    contends = busy >= BUSY * window_s
    return Timeline(
        window_s=window_s,
        tenants=tenants,
        due=due,
        good=good,
        failed=failed,
        tokens=tokens,
        running=running / window_s,
        adapters=_adapters(outcomes, window_s, count),
        service=service,
        contending=contends.sum(axis=0).astype(np.float64),
        jain=_jain(service, contends),
    )


def _jain(service: Floats, contends: NDArray[np.bool_]) -> Floats:
    found = np.full(service.shape[1], np.nan)
    for w in range(service.shape[1]):
        own = service[contends[:, w], w].tolist()
        if len(own) > 1 and (index := jain(own)) is not None:
            found[w] = index
    return found


def _adapters(outcomes: Sequence[Outcome], window_s: float, count: int) -> Floats:
    """Different adapters with an answer under way at each window's middle."""
    found: list[set[tuple[str, str]]] = [set() for _ in range(count)]
    for o in outcomes:
        if o.first_s is None:
            continue
        begin, end = ((o.due_s + s) / window_s - 0.5 for s in (o.first_s, o.end_s))
        for w in range(max(0, int(np.ceil(begin))), min(count - 1, int(np.floor(end))) + 1):
            found[w].add((o.tenant, o.adapter))
    return np.array([len(f) for f in found], dtype=np.float64)


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _cover(windows: Floats, span: tuple[float, float], window_s: float) -> None:
    """Add to each window the seconds of `span` that fall into it."""
    begin, end = max(0.0, span[0]), min(span[1], len(windows) * window_s)
    w = int(begin // window_s)
    while begin < end and w < len(windows):
        upto = min(end, (w + 1) * window_s)
        windows[w] += upto - begin
        begin, w = upto, w + 1

"""What `loraplex top` shows: rates between two moments of the service (`service_status`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.rest.service_status import PLACES

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """share: of all tokens of the interval; fair: its weight's of the weights of tenants with
    requests, 0 where it has none. lag: its account less the least, in weighted tokens."""

    id: str
    weight: float
    running: int
    waiting: int
    tokens_s: float
    share: float
    fair: float
    lag: float


@dataclass(frozen=True, slots=True)
class Work:
    """Of one replica, or of all. Rates are per second of the interval; None: there was no step, or
    no request, to say it of.

    warming         of the waiting, those whose adapter isn't there
    rows_a_step, prompt_a_step  decoding sequences and prompt tokens of a step, on average
    adapters_now    different adapters of the running sequences
    graph_share     of steps replayed from a graph
    cached_share    of prompt tokens
    hit_share       of requests whose adapter was on the device when they came
    stalls_s, stall_s  misses for which the adapter was what they waited for longest, and for how
                    long on average (None: there was none, or metrics are off)
    held, cached    parts of the pages: of running sequences; of cached prefixes and adapters
    """

    running: int
    max_rows: int
    waiting: int
    warming: int
    queue_s: float
    tokens_s: float
    prompt_s: float
    cached_share: float | None
    steps_s: float
    step_p50_s: float
    step_p99_s: float
    rows_a_step: float | None
    prompt_a_step: float | None
    adapters_now: int
    graph_share: float | None
    hit_share: float | None
    misses_s: float
    stalls_s: float
    stall_s: float | None
    loads_s: float
    evictions_s: float
    preemptions_s: float
    held: float
    cached: float
    num_pages: int


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """work: None before the core's first word."""

    slot: int
    ready: bool
    device: str
    adapters: Mapping[str, int]
    num_failed: int
    work: Work | None


@dataclass(frozen=True, slots=True)
class Figures:
    """at_s: Unix seconds. interval_s: between the two moments; 0: there is but one, and no rate.
    loading: `ref.key`s, the first of each replica. others: tenants that aren't told by name."""

    at_s: float
    interval_s: float
    replicas: tuple[ReplicaFigures, ...]
    adapters: Mapping[str, int]
    loading: tuple[str, ...]
    work: Work | None
    tenants: tuple[TenantFigures, ...]
    others: Values


def figures(before: Values | None, now: Values, max_tenants: int) -> Figures:
    """The `max_tenants` busiest by name."""
    interval_s = 0.0 if before is None else max(0.0, now["at_s"] - before["at_s"])
    earlier = {} if before is None else {_life(r): r for r in before["replicas"]}
    pairs = [(earlier.get(_life(r)), r) for r in now["replicas"]]
    tenants = _tenants(before, now, interval_s)
    shown, rest = tenants[:max_tenants], tenants[max_tenants:]
    return Figures(
        at_s=now["at_s"],
        interval_s=interval_s,
        replicas=tuple(_replica(pair, interval_s) for pair in pairs),
        adapters={p: sum(r["adapters"][p] for r in now["replicas"]) for p in PLACES},
        loading=tuple(key for r in now["replicas"] for key in r["loading"]),
        work=_work(pairs, interval_s),
        tenants=tuple(shown),
        others={
            "num_tenants": now["others"]["num_tenants"] + len(rest),
            "running": now["others"]["running"] + sum(t.running for t in rest),
            "waiting": now["others"]["waiting"] + sum(t.waiting for t in rest),
            "tokens_s": sum(t.tokens_s for t in rest),
            "share": sum(t.share for t in rest),
        },
    )


def _life(replica: Values) -> tuple[int, int]:
    """Counters of the same life of a core go on from each other."""
    return replica["slot"], replica["epoch"]


def _tenants(before: Values | None, now: Values, interval_s: float) -> list[TenantFigures]:
    known = {t["id"]: _tokens(t) for t in (before or {"tenants": ()})["tenants"]}
    done = {t["id"]: _drawn(known.get(t["id"], {}), _tokens(t)) for t in now["tenants"]}
    total = sum(done.values())
    weights = sum(t["weight"] for t in now["tenants"] if t["running"] + t["waiting"])
    made = [
        TenantFigures(
            id=t["id"],
            weight=t["weight"],
            running=t["running"],
            waiting=t["waiting"],
            tokens_s=_rate(done[t["id"]], interval_s),
            share=done[t["id"]] / total if total else 0.0,
            fair=t["weight"] / weights if t["running"] + t["waiting"] else 0.0,
            lag=t["lag"],
        )
        for t in now["tenants"]
    ]
    return sorted(made, key=lambda t: (-t.tokens_s, -(t.running + t.waiting), t.id))


def _tokens(tenant: Values) -> Mapping[str, int]:
    """By the life of a core. A service of an earlier release doesn't say."""
    told: Mapping[str, int] = tenant.get("tokens_by", {})
    return told


def _drawn(before: Mapping[str, int], now: Mapping[str, int]) -> int:
    """Of the tokens of all lives. Of one that didn't tell of the tenant before nothing is known
    yet: its number has all from earlier on."""
    return sum(max(0, tokens - before[life]) for life, tokens in now.items() if life in before)


def _replica(pair: tuple[Values | None, Values], interval_s: float) -> ReplicaFigures:
    now = pair[1]
    return ReplicaFigures(
        slot=now["slot"],
        ready=now["ready"],
        device=now["device"],
        adapters=now["adapters"],
        num_failed=now["num_failed"],
        work=_work([pair], interval_s),
    )


def _work(pairs: Sequence[tuple[Values | None, Values]], interval_s: float) -> Work | None:
    told = [(before, now) for before, now in pairs if now["stats"] is not None]
    if not told:
        return None
    of_now = [now["stats"] for _, now in told]

    def total(name: str) -> int:
        return sum(stats[name] for stats in of_now)

    def grown(name: str) -> float:
        return sum(_grown(before, now, "stats", name) for before, now in told)

    arrived = {tier: _arrived(told, tier) for tier in ("cold", "host", "device")}
    steps, waiting, pages = grown("num_steps"), total("num_waiting"), total("num_pages") or 1
    prompt, cached = grown("prompt_tokens"), grown("cached_tokens")
    misses = arrived["cold"] + arrived["host"]
    held = total("held_pages")
    stalls = sum(_grown(before, now, "stalls", "num") for before, now in told)
    stalled_s = sum(_grown(before, now, "stalls", "seconds") for before, now in told)
    return Work(
        running=total("num_running"),
        max_rows=sum(now["max_rows"] for _, now in told),
        waiting=waiting,
        warming=total("num_warming"),
        queue_s=sum(s["queue_s"] * s["num_waiting"] for s in of_now) / max(1, waiting),
        tokens_s=_rate(grown("output_tokens"), interval_s),
        prompt_s=_rate(prompt - cached, interval_s),
        cached_share=_part(cached, prompt),
        steps_s=_rate(steps, interval_s),
        step_p50_s=max(s["step_p50_s"] for s in of_now),
        step_p99_s=max(s["step_p99_s"] for s in of_now),
        rows_a_step=_part(grown("output_tokens"), steps),
        prompt_a_step=_part(prompt - cached, steps),
        adapters_now=total("num_adapters"),
        graph_share=_part(grown("num_replayed"), steps),
        hit_share=_part(arrived["device"], misses + arrived["device"]),
        misses_s=_rate(misses, interval_s),
        stalls_s=_rate(stalls, interval_s),
        stall_s=_part(stalled_s, stalls),
        loads_s=_rate(grown("num_loads"), interval_s),
        evictions_s=_rate(grown("num_evictions"), interval_s),
        preemptions_s=_rate(grown("num_preemptions"), interval_s),
        held=held / pages,
        cached=max(0, total("num_pages") - total("free_pages") - held) / pages,
        num_pages=total("num_pages"),
    )


def _arrived(told: Iterable[tuple[Values | None, Values]], tier: str) -> float:
    return sum(_grown(before, now, "arrivals", tier) for before, now in told)


def _grown(before: Values | None, now: Values, part: str, name: str) -> float:
    """How much a counter has grown; 0 where nothing is known of it from before."""
    if before is None or not before[part]:
        return 0
    return max(0.0, float(now[part].get(name, 0) - before[part].get(name, 0)))


def _rate(amount: float, interval_s: float) -> float:
    return amount / interval_s if interval_s else 0.0


def _part(amount: float, whole: float) -> float | None:
    return amount / whole if whole else None

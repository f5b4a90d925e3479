"""What happens to running sequences while others arrive, and what drawing costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.bench.dummy_server import GREEDY, DummyServer
from engine.types import Request, SamplingParams

NUM_SEQUENCES = 64
NUM_RESIDENT = 8
NUM_COLD = 10
FIRST_COLD = 100_000
"""Number of the first adapter that was never loaded before."""
NUM_ADAPTERS = 64
LOADS = (0.5, 0.8)
LONGEST_MIXED = 1024 + 256
"""Tokens of the longest request of `steady`."""
SATURATING = 512
"""Requests, all at once, by which the saturated rate is measured."""


def stall(server: DummyServer) -> dict[str, Any]:
    """64 sequences over 8 resident adapters decode while 10 requests for adapters never seen come
    one after another. Milliseconds between the tokens of two steps."""
    server.warm(NUM_RESIDENT)
    running = [server.request(i % NUM_RESIDENT, 128, 128) for i in range(NUM_SEQUENCES)]
    undisturbed = server.serve(running)
    step_s = float(np.median(undisturbed.step_gaps_s()))
    running = [server.request(i % NUM_RESIDENT, 128, 128) for i in range(NUM_SEQUENCES)]
    cold = [server.request(FIRST_COLD + i, 16, 8) for i in range(NUM_COLD)]
    # Spread over the decoding, which begins once the prompts are read.
    due = [(30 + 8 * i) * step_s for i in range(NUM_COLD)]
    served = server.serve(running + cold, [0.0] * NUM_SEQUENCES + due)
    gaps = 1e3 * np.array(
        [
            b.at_s - a.at_s
            for a, b in zip(served.steps, served.steps[1:], strict=False)
            if min(a.num_rows, b.num_rows) >= NUM_SEQUENCES
            and max(a.num_tokens, b.num_tokens) < 2 * NUM_SEQUENCES
        ]
    )
    return {
        "bench": "stall",
        "p50_ms": round(float(np.percentile(gaps, 50)), 3),
        "p99_ms": round(float(np.percentile(gaps, 99)), 3),
        "max_ms": round(float(gaps.max()), 3),
        "steps": len(gaps),
        "undisturbed_p50_ms": round(1e3 * step_s, 3),
    }


def steady(server: DummyServer, seconds: float) -> Iterator[dict[str, Any]]:
    """Poisson arrivals at parts of the saturated rate: input U[32, 1024], output U[32, 256], 64
    adapters by a Zipf(1.0) law."""
    server.warm(NUM_ADAPTERS)
    rng = np.random.default_rng(2)
    saturated = server.serve([_mixed(server, rng) for _ in range(SATURATING)])
    rate = SATURATING / saturated.seconds
    for load in LOADS:
        gaps = rng.exponential(1 / (load * rate), max(1, int(load * rate * seconds)))
        served = server.serve([_mixed(server, rng) for _ in gaps], np.cumsum(gaps).tolist())
        yield {
            "bench": "steady",
            "load": load,
            **_percentiles("ttft", [served.first_s[i] - due for i, due in served.due_s.items()]),
            **_percentiles("itl", served.gaps_s),
            "graph_share": round(served.graph_share(), 4),
            "requests_s": round(load * rate, 2),
            "saturated_requests_s": round(rate, 2),
            "out_tok_s": round(served.num_tokens / served.seconds, 1),
        }


def sampler(server: DummyServer, rows: int) -> dict[str, Any]:
    """Milliseconds of a decode step, all rows greedy and half of them drawing."""
    drawing = SamplingParams(temperature=0.7, top_p=0.9, top_k=40)

    def step_ms(num_drawing: int) -> float:
        how = [drawing] * num_drawing + [GREEDY] * (rows - num_drawing)
        served = server.serve([server.request(None, 128, 64, sampling) for sampling in how])
        return served.decode_ms(rows)[0]

    step_ms(0)
    greedy_ms, half_ms = step_ms(0), step_ms(rows // 2)
    return {
        "bench": "sampler",
        "rows": rows,
        "greedy_step_ms": round(greedy_ms, 3),
        "half_drawing_step_ms": round(half_ms, 3),
        "cost_fraction": round(half_ms / greedy_ms - 1, 4),
    }


def _mixed(server: DummyServer, rng: np.random.Generator) -> Request:
    shares = 1.0 / np.arange(1, NUM_ADAPTERS + 1)
    adapter = int(rng.choice(NUM_ADAPTERS, p=shares / shares.sum()))
    return server.request(adapter, int(rng.integers(32, 1025)), int(rng.integers(32, 257)))


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    return {f"{name}_p{p}_ms": round(1e3 * float(np.percentile(seconds, p)), 2) for p in (50, 99)}

"""Runs the benchmarks whose results the README states, each against its bound: `make bench-check`.

Wants the machine for itself. Prints a line for every figure and exits with 1 where one is out of
bounds; the benchmarks' own output is kept in `.loraplex/bench/`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent
MODEL = PROJECT / ".loraplex" / "quickstart" / "model"
OUTPUT = PROJECT / ".loraplex" / "bench"
ENVIRONMENT = {**os.environ, "RAY_ADDRESS": "", "RAY_AUTH_MODE": "disabled"}


@dataclass(frozen=True)
class Figure:
    """`value` of a benchmark's report must be at least (or at most) `bound`."""

    name: str
    value: Callable[[Any], float]
    bound: float
    at_least: bool

    def holds(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True)
class Benchmark:
    name: str
    arguments: Sequence[str]
    figures: Sequence[Figure]


def _row(reports: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(next(report[key] for report in reports if key in report))


def _largest(cases: Mapping[str, Mapping[str, Any]], key: str) -> float:
    return max(float(case[key]) for case in cases.values())


DECODE = Benchmark(
    "decode",
    ["engine.bench", "--device", "cpu", "--model", str(MODEL), "--adapters", "8", "--json"],
    [
        Figure("base, of a plain loop", lambda r: _row(r, "of_plain"), 0.8, at_least=True),
        Figure("8 adapters, of base only", lambda r: _row(r, "of_base"), 0.8, at_least=True),
    ],
)
ISOLATION = Benchmark(
    "isolation",
    ["deployments.bench", "isolation"],
    [
        Figure("busy thread", lambda r: float(r["p99_ratio"]["busy_thread"]), 1.1, at_least=False),
        Figure("50 loads", lambda r: float(r["p99_ratio"]["loads"]), 1.1, at_least=False),
    ],
)
COLD = Benchmark(
    "cold",
    ["tests.bench_cold"],
    [
        Figure(
            "p99 from token to token beside 50 cold adapters, of the same with resident ones",
            lambda r: float(r["p99_ratio"]),
            1.3,
            at_least=False,
        ),
    ],
)
TURNS = Benchmark(
    "turns",
    ["engine.bench", "turns", "--model", str(MODEL), "--json"],
    [
        Figure(
            "room for 8 of 32 adapters, of room for all",
            lambda r: _row(r, "of_resident"),
            0.6,
            at_least=True,
        ),
    ],
)
SCHEDULER = Benchmark(
    "scheduler",
    ["tests.support.scheduling_cost"],
    [
        Figure(
            "schedule(), 256 rows, 10,000 waiting of 1,000 tenants, dearest order and price, ms",
            lambda r: _largest(r, "schedule_ms"),
            0.5,
            at_least=False,
        ),
        Figure("commit(), likewise, ms", lambda r: _largest(r, "commit_ms"), 0.5, at_least=False),
    ],
)
STREAMS = Benchmark(
    "streams",
    ["deployments.bench", "streams"],
    [
        Figure(
            "part of the tokens that came",
            lambda r: float(r["tokens_received"] / r["tokens_expected"]),
            1.0,
            at_least=True,
        ),
        Figure("in order", lambda r: float(r["every_token_in_order"]), 1.0, at_least=True),
        Figure("p99 of added delay, s", lambda r: float(r["delay_p99_s"]), 0.08, at_least=False),
    ],
)
LOADGEN = Benchmark(
    "loadgen",
    ["tests.bench_loadgen"],
    [
        Figure(
            "part answered at 500 requests/s",
            lambda r: float(r["answered"] / r["requests"]),
            1.0,
            at_least=True,
        ),
        Figure(
            "p99 of its own latency error, s",
            lambda r: float(r["error_p99_s"]),
            0.005,
            at_least=False,
        ),
    ],
)


def _run(benchmark: Benchmark) -> Any:
    """Its report: one JSON value, or a list of them where it prints one a line."""
    command = [sys.executable, "-m", *benchmark.arguments]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    log = OUTPUT / f"{benchmark.name}.log"
    with log.open("w") as lines:
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{benchmark.name} ended with {done.returncode}: look at {log}")
    (OUTPUT / f"{benchmark.name}.json").write_text(done.stdout)
    if "--json" in benchmark.arguments:
        return [json.loads(line) for line in done.stdout.splitlines()]
    return json.loads(done.stdout[done.stdout.index("{") :])


def main() -> int:
    subprocess.run(
        [sys.executable, "-m", "deployments.quickstart", "prepare"], cwd=PROJECT, check=True
    )
    failed = 0
    for benchmark in (DECODE, SCHEDULER, TURNS, ISOLATION, COLD, STREAMS, LOADGEN):
        report = _run(benchmark)
        for figure in benchmark.figures:
            value = figure.value(report)
            sign = ">=" if figure.at_least else "<="
            verdict = "ok" if figure.holds(value) else "OUT OF BOUNDS"
            failed += not figure.holds(value)
            print(f"{benchmark.name}: {figure.name}: {value:.3f} ({sign} {figure.bound}) {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

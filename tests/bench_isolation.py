"""What a noisy neighbour costs the quiet, on a running quickstart: `make isolation`.

Eight quiet tenants ask for half of what the service can serve of theirs; a neighbour comes first
with more than it has rows for, and goes on asking for twenty times what a quiet one does, long
prompts and answers over thirty adapters. Under `deficit` alone and beside it, under `fcfs` beside
it; then what `w_local` buys, on a virtual clock. Wants the machine for itself, for about eight
minutes; prints what it is at, and leaves report.html, report.md and report.json.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from engine.config import MAX_STEP_S as MAX_STEP_OF
from loadgen.client.run import Run
from loadgen.client.stream import Endpoint
from loadgen.experiment import Experiment, Place, Publication, perform
from loadgen.publishing import service_tenant
from loadgen.report.slo import Slo
from loadgen.workloads.arrival import Arrival, Schedule
from loadgen.workloads.draws import whole
from tests.support import isolation_report, locality
from tests.support.isolation_report import Seen
from tests.support.ports import free_port
from tests.support.service import Service

PROJECT = Path(__file__).parent.parent
QUIET = [f"quiet{i}" for i in range(8)]
NOISY, NUM_ADAPTERS, NUM_AT_ONCE, TIMES = "noisy", 30, 120, 20
SETTLE_S = 10.0
"""How long the neighbour is alone."""
SLO = Slo(first_s=2.0, token_s=0.5)
MAX_STEP_S = MAX_STEP_OF["cpu"]
SEED = 5
DRAIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens of prompts and answers, least and most."""

    quiet_in: tuple[int, int] = (48, 96)
    quiet_out: tuple[int, int] = (8, 16)
    noisy_in: tuple[int, int] = (256, 512)
    noisy_out: tuple[int, int] = (32, 64)


def quiet_arrivals(rate: float, num: int, start_s: float, sizes: Sizes) -> list[Arrival]:
    """`num` requests, `rate` a second in all; the same whatever else goes on."""
    rng = random.Random(SEED)
    now, arrivals = start_s, []
    for _ in range(num):
        now += rng.expovariate(rate)
        i = rng.randrange(len(QUIET))
        lengths = (rng.randint(*sizes.quiet_in), rng.randint(*sizes.quiet_out))
        arrivals.append(Arrival(whole(now), QUIET[i], f"q{i}", *lengths))
    return arrivals


def noisy_arrivals(rate: float, end_s: float, sizes: Sizes) -> list[Arrival]:
    """More than there are rows at once, then so many a second."""
    rng = random.Random(SEED + 1)
    times = [0.0] * NUM_AT_ONCE
    now = 0.0
    while (now := now + rng.expovariate(rate)) < end_s:
        times.append(whole(now))
    return [
        Arrival(t, NOISY, f"n{rng.randrange(NUM_ADAPTERS)}", rng.randint(*sizes.noisy_in),
                rng.randint(*sizes.noisy_out))
        for t in times
    ]  # fmt: skip


def schedule(name: str, arrivals: list[Arrival], **parameters: Any) -> Schedule:
    ordered = tuple(sorted(arrivals, key=lambda a: a.time_s))
    return Schedule(name, SEED, parameters, ordered[-1].time_s + 1.0, ordered)


class Bench:
    """A service of one order, and runs against it."""

    def __init__(
        self, home: Path, out: Path, order: str, max_step_s: float, console: Console
    ) -> None:
        self._out, self._console = out, console
        self._roster = home / "isolation-roster.json"
        console.print(f"starting the quickstart with order {order}", highlight=False)
        self._service = Service(PROJECT, home, free_port(), None, order, max_step_s)
        console.print(f"  ready after {self._service.startup_s:.0f} s", highlight=False)

    @property
    def _place(self) -> Place:
        service = self._service
        return Place.of(service.url, "", service.data, self._roster)

    def publish(self, every: Schedule) -> None:
        place = self._place
        order = Publication(place, None, "", (8,), ("q_proj", "v_proj"), SEED)
        order.perform(every, self._roster, self._console)

    def run(self, name: str, plan: Schedule) -> Seen:
        self._console.print(
            f"{name}: {len(plan.arrivals)} requests in {plan.duration_s:.0f} s", highlight=False
        )
        place, before = self._place, self._usage()
        experiment = Experiment(plan, place, Endpoint(place.url), (), False, DRAIN_S, SLO)
        perform(
            experiment, self._out / name, Console(stderr=True, quiet=not self._console.is_terminal)
        )
        time.sleep(3.0)  # counters come once a second, and are gathered every two
        after = self._usage()
        used = {
            tenant: {k: v - before.get(tenant, {}).get(k, 0) for k, v in counts.items()}
            for tenant, counts in after.items()
        }
        run = Run.read(self._out / name)
        return Seen(list(run.outcomes), used, run.facts.wall_s)

    def _usage(self) -> dict[str, dict[str, float]]:
        with self._service.client("admin") as client:
            data = client.get("/v1/usage", params={"limit": 1000}).raise_for_status().json()["data"]
        prefix = service_tenant("")
        return {
            used["tenant"].removeprefix(prefix): {
                k: v for k, v in used.items() if isinstance(v, int | float)
            }
            for used in data
        }

    def close(self) -> None:
        """What it does not end of itself within a minute is killed: the figures are there."""
        with suppress(subprocess.TimeoutExpired):
            self._service.stop()


def capacity(bench: Bench, sizes: Sizes, num: int) -> float:
    """Quiet requests a second that the service can serve: all come at once, and those count that
    end while others are still let in. When the last has its row, what ends is faster than what can
    be served for long."""
    plan = schedule("calibration", quiet_arrivals(1000.0, num, 0.0, sizes))
    done = [o for o in bench.run("calibration", plan).outcomes if o.ok]
    until = max(o.due_s + (o.first_s or 0.0) for o in done)
    ends = [end for o in done if (end := o.due_s + o.end_s) <= until]
    return (len(ends) - 1) / (until - min(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=PROJECT, help="where .loraplex is kept")
    parser.add_argument("--out", type=Path, default=PROJECT / ".loraplex" / "isolation")
    parser.add_argument("--requests", type=int, default=330, help="of the quiet, in each run")
    parser.add_argument("--rate", type=float, help="of the quiet, a second; else half of capacity")
    parser.add_argument("--max-step-s", type=float, default=MAX_STEP_S, help="of the service")
    parser.add_argument("--calibration", type=int, default=240, help="requests to find capacity")
    given = parser.parse_args()
    console, sizes = Console(), Sizes()
    for folder in (given.home, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    fair = Bench(given.home, given.out, "deficit", given.max_step_s, console)
    try:
        fair.publish(
            schedule(
                "all",
                [*(Arrival(0.0, q, f"q{i}", 1, 1) for i, q in enumerate(QUIET)),
                 *(Arrival(0.0, NOISY, f"n{i}", 1, 1) for i in range(NUM_ADAPTERS))],
            )
        )  # fmt: skip
        whole_rate = capacity(fair, sizes, given.calibration)
        rate = given.rate or whole_rate / 2
        console.print(
            f"capacity {whole_rate:.1f} quiet requests/s; they ask for {rate:.1f}", highlight=False
        )
        quiet = quiet_arrivals(rate, given.requests, SETTLE_S, sizes)
        noise = noisy_arrivals(TIMES * rate / len(QUIET), quiet[-1].time_s, sizes)
        runs = {"alone": fair.run("alone", schedule("alone", quiet, rate=rate))}
        runs["deficit"] = fair.run("deficit", schedule("beside", [*quiet, *noise], rate=rate))
    finally:
        fair.close()
    first = Bench(given.home, given.out, "fcfs", given.max_step_s, console)
    try:
        few = quiet[: max(1, given.requests // 2)]
        same = [a for a in noise if a.time_s <= few[-1].time_s]
        runs["fcfs"] = first.run("fcfs", schedule("beside", [*few, *same], rate=rate))
    finally:
        first.close()
    console.print("w_local on a virtual clock")
    sweep = [locality.measure(w_local) for w_local in locality.SWEEP]
    report = isolation_report.Report.of(runs, sweep, NOISY, SLO, given.max_step_s, rate, whole_rate)
    isolation_report.write(report, given.out)
    console.print(isolation_report.text(report), highlight=False, markup=False)
    took_s = time.monotonic() - began
    console.print(f"\n{given.out / 'report.html'}, report.md, report.json; {took_s:.0f} s")
    (given.out / "report.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    raise SystemExit(0 if report.holds else 1)


if __name__ == "__main__":
    main()

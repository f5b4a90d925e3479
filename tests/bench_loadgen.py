"""The load generator's own latency error: 500 requests a second to a server that answers at once.

What it then reports as the time to the first token, from when a request was due, is its own doing.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import uvloop

from loadgen.client.roster import Binding, Target
from loadgen.client.runner import Result, Runner, session
from loadgen.client.stream import Endpoint
from loadgen.report.stats import Quantiles
from loadgen.workloads import draws
from loadgen.workloads.arrival import Arrival, Schedule
from tests.support.stream_server import serving

TOKENS = 16


async def measure(url: str, rate: float, duration_s: float) -> Result:
    """Poisson arrivals; connections that are open already, as in the middle of a run."""
    times = draws.poisson_times(draws.stream(1, "bench"), rate, duration_s)
    arrivals = tuple(Arrival(t, "t", "a", 128, TOKENS) for t in times)
    schedule = Schedule("bench", 1, {}, duration_s, arrivals)
    binding = Binding({("t", "a"): Target("key", "m/fine")})
    async with session() as http:
        return await Runner(schedule, binding, Endpoint(url), time.monotonic).run(http, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    began = time.process_time()
    with serving() as url:
        result = uvloop.run(measure(url, given.rate, given.seconds))
    cpu_s = time.process_time() - began
    error = Quantiles.of(o.first_s for o in result.outcomes if o.first_s is not None)
    lag = Quantiles.of(o.lag_s for o in result.outcomes)
    assert error is not None and lag is not None
    report = {
        "requests": len(result.outcomes),
        "answered": sum(o.ok for o in result.outcomes),
        "error_p50_s": error.p50,
        "error_p99_s": error.p99,
        "error_max_s": error.max,
        "lag_p99_s": lag.p99,
        "cpu_per_request_s": cpu_s / len(result.outcomes),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

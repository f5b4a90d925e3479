"""The whole engine on a GPU, with dummy weights.

`python -m engine.bench throughput --dummy-weights --adapters 0,1,8,64 --rank 16 --json`
`python -m engine.bench latency --dummy-weights --batches 1,32,256 --adapters 0,1,64 --json`
`python -m engine.bench stall|steady|sampler --dummy-weights --json`
`python -m engine.bench working_set --dummy-weights --adapters 64 --json`

Several commands may be named: they share a server, as all cases of one do, so that they are
measured on the same captured graphs. Results are appended to engine/results.jsonl.

Everything runs in this process: scheduler, accounts, arena, adapter cache, GPU runner at depth 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.bench.arrivals import LONGEST_MIXED, sampler, stall, steady
from engine.bench.dummy import SHAPES, TARGETS
from engine.bench.dummy_server import DummyServer, Sizes
from engine.bench.results import Results
from engine.bench.working_set import working_set
from engine.config import MAX_STEP_S, AdapterConfig, ScheduleConfig

COMMANDS = ("throughput", "latency", "stall", "steady", "sampler", "working_set")


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    server = DummyServer(sizes(options))
    results = Results()
    for case in cases(server, options):
        results.add(case)


def cases(server: DummyServer, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The commands' results, one after another."""
    for command in options.commands:
        yield from _cases(command, server, options)


def _cases(
    command: str, server: DummyServer, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    match command:
        case "throughput":
            base_ms = 0.0
            for num_adapters in options.adapters:
                case, step_ms = throughput(server, options, num_adapters, base_ms)
                base_ms = base_ms or (0.0 if num_adapters else step_ms)
                yield case
        case "latency":
            for batch in options.batches:
                for num_adapters in options.adapters:
                    if num_adapters <= batch:
                        yield latency(server, batch, num_adapters, options.output)
        case "stall":
            yield stall(server)
        case "steady":
            yield from steady(server, options.seconds)
        case "sampler":
            yield sampler(server, options.max_seqs)
        case "working_set":
            for num_adapters in filter(None, options.adapters):
                yield working_set(server, options, num_adapters)


def throughput(
    server: DummyServer, options: argparse.Namespace, num_adapters: int, base_ms: float
) -> tuple[dict[str, Any], float]:
    """(the case, milliseconds of a full decode step). Adapters are resident before the clock
    starts; base_ms: of a step without adapters, 0 where it was not measured."""
    server.warm(num_adapters)
    owners = _owners(options, num_adapters)
    prefill = server.serve([server.request(i, options.input, 1) for i in owners])
    served = server.serve([server.request(i, options.input, options.output) for i in owners])
    rows = min(options.max_seqs, options.requests)
    host_ms, device_ms = served.decode_ms(rows)
    case = {
        "bench": "throughput",
        "shape": options.shape,
        "adapters": num_adapters,
        "rank": options.rank,
        "targets": options.targets,
        "zipf": options.zipf,
        "requests": options.requests,
        "input": options.input,
        "output": options.output,
        "max_seqs": options.max_seqs,
        "out_tok_s": round(served.num_tokens / served.seconds, 1),
        "prefill_s": round(prefill.seconds, 3),
        "step_ms": round(host_ms, 3),
        "device_step_ms": round(device_ms, 3),
        "adapter_overhead_fraction": round(host_ms / base_ms - 1, 3) if base_ms else None,
        "startup_s": round(server.startup_s, 1),
    }
    return case, host_ms


def latency(server: DummyServer, batch: int, num_adapters: int, num_output: int) -> dict[str, Any]:
    """Median milliseconds between two decode steps of `batch` rows."""
    server.warm(num_adapters)
    owners = [i % num_adapters if num_adapters else None for i in range(batch)]
    served = server.serve([server.request(i, 128, num_output) for i in owners])
    host_ms, device_ms = served.decode_ms(batch)
    return {
        "bench": "latency",
        "batch": batch,
        "adapters": num_adapters,
        "step_ms": round(host_ms, 3),
        "device_step_ms": round(device_ms, 3),
        "startup_s": round(server.startup_s, 1),
    }


def _owners(options: argparse.Namespace, num_adapters: int) -> list[int | None]:
    """The adapter of each request: dealt round robin, or drawn from a Zipf law."""
    num = options.requests
    if not num_adapters:
        return [None] * num
    if not options.zipf:
        return [i % num_adapters for i in range(num)]
    shares = 1.0 / np.arange(1, num_adapters + 1) ** options.zipf
    drawn = np.random.default_rng(1).choice(num_adapters, num, p=shares / shares.sum())
    return [int(i) for i in drawn]


def sizes(options: argparse.Namespace) -> Sizes:
    """What the commands' server is made for."""
    longest = max(options.input, 128) + options.output
    if "steady" in options.commands:
        longest = max(longest, LONGEST_MIXED)
    return Sizes(
        shape=options.shape,
        max_seqs=options.max_seqs,
        max_len=longest + 16,
        rank=options.rank,
        targets=options.targets,
        max_rank=options.max_rank,
        max_step_s=options.max_step_s,
        prefill_steps=options.prefill_steps,
    )


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description=__doc__)
    parser.add_argument("commands", nargs="+", choices=COMMANDS, metavar="command")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--dummy-weights", action="store_true", required=True)
    parser.add_argument("--adapters", type=_numbers, default=[0], help="a case for each number")
    parser.add_argument("--batches", type=_numbers, default=[1, 32, 256], help="latency: rows")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument(
        "--max-rank",
        type=int,
        default=AdapterConfig().max_rank,
        help="of adapters that may be served",
    )
    parser.add_argument("--targets", choices=sorted(TARGETS), default="all")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--max-seqs", type=int, default=256)
    parser.add_argument("--max-step-s", type=float, default=MAX_STEP_S["cuda"])
    parser.add_argument("--prefill-steps", type=int, default=ScheduleConfig().prefill_steps)
    parser.add_argument("--zipf", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=30.0, help="steady: of arrivals")
    parser.add_argument("--json", action="store_true", help="the only format; accepted for scripts")
    return parser.parse_args(arguments)

"""`python -m kernels.bench [lora_step] [lora_ranks] [attention] [sampler] [--json] [--append FILE]`

One JSON line a case on standard output; --append adds them to a file with GPU, commit and date.
`ms` of lora_step is what adapters add to the step, see `kernels.bench.lora_step`. --details adds
what the graphs are, the step without adapters, and `alone_ms`: the same term as two
kernels that add in place, outside of any step. lora_ranks: adapters of ranks 8,
16, 32 and 64 in one batch, against the mean of the four uniform batches, each in the graph that the
engine takes for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from kernels.bench import attention, lora_step, sampler
from kernels.bench.graphs import milliseconds
from kernels.bench.shapes import SHAPES, Shape
from kernels.tuning import block_rows_for

BENCHES = ("lora_step", "lora_ranks", "attention", "sampler")
LORA_CASES = {256: (1, 8, 32, 64, 256), 32: (1, 8, 20, 32), 2048: (1, 8)}
RANKS = (8, 16, 32, 64)
RANKS_ROWS, RANKS_ADAPTERS = 256, 32
DETAILS = {"max_rank", "base_step_ms", "alone_ms", "block_rows", "beside"}
ATTENTION_CASES = ((256, 192), (256, 1024), (32, 4096), (1, 4096))
BESIDE_ROWS = 64
"""Up to so many rows a product leaves the chip room for a shrink beside it."""

Case = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("benches", nargs="*", metavar="bench", help="all by default")
    parser.add_argument("--shape", default="llama-3.1-8b", choices=SHAPES)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--max-rank", type=int, default=256, help="of adapters that may be served")
    parser.add_argument("--rows", type=int, nargs="*", default=list(LORA_CASES), choices=LORA_CASES)
    parser.add_argument("--json", action="store_true", help="print JSON lines, not a table")
    parser.add_argument("--details", action="store_true", help="more keys, see above")
    parser.add_argument("--append", type=Path, help="a .jsonl file that the lines are added to")
    args = parser.parse_args()
    unknown = set(args.benches) - set(BENCHES)
    if unknown:
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    if not torch.cuda.is_available():
        parser.error("a CUDA GPU is needed")
    shape = SHAPES[args.shape]
    origin = {
        "gpu": torch.cuda.get_device_name(),
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    for found in cases(args, shape):
        case = {k: v for k, v in found.items() if args.details or k not in DETAILS}
        words = "  ".join(f"{k} {v}" for k, v in case.items())
        print(json.dumps(case) if args.json else words, flush=True)
        if args.append:
            with args.append.open("a") as file:
                file.write(json.dumps({**case, **origin}) + "\n")


def cases(args: argparse.Namespace, shape: Shape) -> Iterator[Case]:
    benches = args.benches or BENCHES
    if "lora_step" in benches:
        yield from lora_cases(shape, args.rank, args.max_rank, args.rows)
    if "lora_ranks" in benches:
        yield from rank_cases(shape, args.max_rank)
    if "attention" in benches:
        for num_rows, context in ATTENTION_CASES:
            ms = attention.measure_attention(shape, num_rows, context)
            floor = attention.floor_ms(shape, num_rows, context)
            yield {"bench": "attention", "rows": num_rows, "context": context, **result(ms, floor)}
    if "sampler" in benches:
        for drawing in (0, 128, 256):
            ms = sampler.measure_sampler(256, shape.vocab, drawing)
            floor = sampler.floor_ms(256, shape.vocab)
            yield {"bench": "sampler", "rows": 256, "drawing": drawing, **result(ms, floor)}


def lora_cases(shape: Shape, rank: int, max_rank: int, rows: list[int]) -> Iterator[Case]:
    step = lora_step.DecodeStep(shape, max(rows))
    most = max(k for num_rows in rows for k in LORA_CASES[num_rows])
    adapters = lora_step.Adapters(shape, [rank] * most, step.device)
    for num_rows in rows:
        step.set_rows(num_rows)
        base = lora_step.base_graphs(step)
        for k in LORA_CASES[num_rows]:
            owners = lora_step.owners_of(num_rows, k)
            block_rows, beside = block_rows_for(num_rows, k), num_rows <= BESIDE_ROWS
            graphs = [
                lora_step.step_graph(
                    step,
                    adapters,
                    owners,
                    block_rows=block_rows,
                    alone=alone,
                    beside=beside,
                    max_rank=max_rank,
                )
                for alone in (True, False)
            ]
            products, without, alone_ms, with_adapters = milliseconds(
                [g.graph for g in (*base, *graphs)]
            )
            yield {
                "bench": "lora_step",
                "rows": num_rows,
                "k": k,
                "rank": rank,
                "max_rank": max_rank,
                **result(with_adapters - without, lora_step.floor_ms(shape, num_rows, [rank] * k)),
                "base_gemm_ms": round(products, 3),
                "base_step_ms": round(without, 3),
                "alone_ms": round(alone_ms, 3),
                "block_rows": block_rows,
                "beside": beside,
            }


def rank_cases(shape: Shape, max_rank: int) -> Iterator[Case]:
    step = lora_step.DecodeStep(shape, RANKS_ROWS)
    base = lora_step.base_graphs(step)
    owners = lora_step.owners_of(RANKS_ROWS, RANKS_ADAPTERS)
    uniform: list[float] = []
    each = RANKS_ADAPTERS // len(RANKS)
    for ranks in (*([rank] * RANKS_ADAPTERS for rank in RANKS), list(RANKS) * each):
        adapters = lora_step.Adapters(shape, ranks, step.device)
        graph = lora_step.step_graph(
            step,
            adapters,
            owners,
            block_rows=block_rows_for(RANKS_ROWS, RANKS_ADAPTERS),
            max_rank=max_rank,
        )
        _, without, with_adapters = milliseconds([g.graph for g in (*base, graph)])
        ms = with_adapters - without
        case: Case = {
            "bench": "lora_ranks",
            "rows": RANKS_ROWS,
            "k": RANKS_ADAPTERS,
            **result(ms, lora_step.floor_ms(shape, RANKS_ROWS, ranks)),
        }
        if len(uniform) < len(RANKS):
            yield {**case, "rank": ranks[0]}
            uniform.append(ms)
        else:
            mean = sum(uniform) / len(uniform)
            yield {**case, "rank": "mixed", "over_mean": round(ms / mean, 3)}
        del graph, adapters


def result(ms: float, floor: float) -> Case:
    return {"ms": round(ms, 3), "floor_ms": round(floor, 3)}


def commit() -> str:
    """The commit that is checked out; "unknown" where there is no repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()

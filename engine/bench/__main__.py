"""Decoding speed beside a plain loop, and with adapters beside without.

`python -m engine.bench --device cpu --model PATH --adapters 8 --json`

On a GPU, with dummy weights: see `engine.bench.gpu`. More adapters than room: `engine.bench.turns`.

The three take turns step by step in one process, at equal lengths, so that whatever else the
machine does meets them alike. A rate is batch / median seconds of a step in which all rows decode.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Generator
from dataclasses import dataclass, field

import torch

from engine.bench import gpu, turns
from engine.bench.ours import MAX_AHEAD, OurEngine, bench_config, fastest_dtype, random_adapter
from engine.bench.plain import PlainLoop
from engine.model.spec import BackboneSpec
from engine.model.weights import load_weights


@dataclass
class Steps:
    """Seconds of decode steps, and the part of rows whose tokens the plain loop and the engine
    agree on to the last (in bf16 they may part at near-ties)."""

    plain: list[float] = field(default_factory=list)
    base: list[float] = field(default_factory=list)
    adapters: list[float] = field(default_factory=list)
    same_tokens: list[float] = field(default_factory=list)


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    spec = BackboneSpec.load(options.model)
    max_len = options.prompt + options.tokens + MAX_AHEAD
    config = bench_config(options.model, options.dtype, options.threads, options.batch, max_len)
    kinds = tuple(options.targets.split(","))
    adapters = [random_adapter(spec, options.rank, kinds) for _ in range(options.adapters)]
    base, adapted = OurEngine(config, []), OurEngine(config, adapters)
    weights = load_weights(options.model, spec, getattr(torch, options.dtype))
    plain = PlainLoop(spec, weights, options.batch, max_len)
    steps = Steps()
    for _ in range(options.rounds):
        prompts = torch.randint(0, spec.vocab_size, (options.batch, options.prompt))
        _round(prompts, options.tokens, plain, base, adapted, steps)
    _report(options, steps)


def _round(
    prompts: torch.Tensor,
    num_tokens: int,
    plain: PlainLoop,
    base: OurEngine,
    adapted: OurEngine,
    steps: Steps,
) -> None:
    batch, ids = len(prompts), prompts.tolist()
    refs = [adapted.refs[i % len(adapted.refs)] for i in range(batch)] if adapted.refs else []
    turns: list[tuple[list[float], Generator[float, None, None]]] = [
        (steps.plain, plain.decode(prompts, num_tokens)),
        (steps.base, base.decode(ids, [None] * batch, num_tokens)),
    ]
    if refs:
        turns.append((steps.adapters, adapted.decode(ids, list(refs), num_tokens)))
    # The plain loop comes first: when it ends, the engines are not asked for another step.
    for seconds in zip(*(decode for _, decode in turns), strict=False):
        for (kept, _), one in zip(turns, seconds, strict=True):
            kept.append(one)
    for engine in turns[1:]:
        engine[1].close()
    # The row that was read last is a token behind.
    same = sum(a[: len(b)] == b for a, b in zip(plain.tokens, base.tokens, strict=True))
    steps.same_tokens.append(same / batch)


def _report(options: argparse.Namespace, steps: Steps) -> None:
    plain, base = statistics.median(steps.plain), statistics.median(steps.base)
    rows: list[tuple[str, list[float], dict[str, float]]] = [
        ("plain static-cache loop", steps.plain, {}),
        (
            "engine, base only",
            steps.base,
            {"of_plain": plain / base, "same_tokens": statistics.mean(steps.same_tokens)},
        ),
    ]
    if steps.adapters:
        what = f"engine, {options.adapters} adapters of rank {options.rank} on {options.targets}"
        adapters = statistics.median(steps.adapters)
        rows.append(
            (what, steps.adapters, {"of_base": base / adapters, "of_plain": plain / adapters})
        )
    for what, seconds, ratios in rows:
        row = {
            "what": what,
            "tok_s": round(options.batch / statistics.median(seconds), 1),
            "step_ms": round(1e3 * statistics.median(seconds), 2),
            "best_step_ms": round(1e3 * min(seconds), 2),
            **{name: round(value, 3) for name, value in ratios.items()},
            **{k: getattr(options, k) for k in ("batch", "prompt", "tokens", "dtype", "threads")},
        }
        print(json.dumps(row) if options.json else _text(row, ratios), flush=True)


def _text(row: dict[str, object], ratios: dict[str, float]) -> str:
    shown = "".join(f"  {name} {value:.0%}" for name, value in ratios.items())
    return f"{row['what']:50s} {row['tok_s']:>8} tok/s{shown}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description=__doc__)
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--adapters", type=int, default=0, help="distinct adapters in the batch")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--targets", default="q_proj,v_proj")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default=fastest_dtype())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["turns"]:
        turns.main(sys.argv[2:])
    elif sys.argv[1:2] and sys.argv[1] in gpu.COMMANDS:
        gpu.main(sys.argv[1:])
    else:
        main()

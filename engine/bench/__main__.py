"""Decoding speed beside a plain loop, and with adapters beside without.

`python -m engine.bench --device cpu --model PATH --adapters 8 --json`

Rounds of the three take turns in one process, so that whatever else the machine does meets them
alike. A rate is batch / median seconds of a step in which all rows decode; what is compared is the
median over rounds of the ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field

import torch

from engine.bench.ours import OurEngine, Run, bench_config, random_adapter
from engine.bench.plain import PlainLoop
from engine.model.spec import BackboneSpec
from engine.model.weights import load_weights


@dataclass
class Rates:
    """Tokens per second of each round. same: the part of rows whose tokens the plain loop and the
    engine agree on to the last (in bf16 they may part at near-ties)."""

    plain: list[float] = field(default_factory=list)
    base: list[float] = field(default_factory=list)
    adapters: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    spec = BackboneSpec.load(options.model)
    max_len = options.prompt + options.tokens + 1
    config = bench_config(options.model, options.dtype, options.threads, options.batch, max_len)
    adapters = [
        random_adapter(spec, options.rank, tuple(options.targets.split(",")))
        for _ in range(options.adapters)
    ]
    ours = OurEngine(config, adapters)
    weights = load_weights(options.model, spec, getattr(torch, options.dtype))
    plain = PlainLoop(spec, weights, options.batch, max_len)
    rates = Rates()
    for _ in range(options.rounds):
        prompts = torch.randint(0, spec.vocab_size, (options.batch, options.prompt))
        _round(options, prompts, plain, ours, rates)
    _report(options, rates)


def _round(
    options: argparse.Namespace,
    prompts: torch.Tensor,
    plain: PlainLoop,
    ours: OurEngine,
    rates: Rates,
) -> None:
    batch = len(prompts)
    loop = _plain(plain, prompts, options.tokens)
    rates.plain.append(batch / statistics.median(loop.decode_s))
    base = ours.run(prompts.tolist(), [None] * batch, options.tokens)
    rates.same.append(sum(a == b for a, b in zip(loop.tokens, base.tokens, strict=True)) / batch)
    rates.base.append(batch / statistics.median(base.decode_s))
    if ours.refs:
        refs = [ours.refs[i % len(ours.refs)] for i in range(batch)]
        run = ours.run(prompts.tolist(), list(refs), options.tokens)
        rates.adapters.append(batch / statistics.median(run.decode_s))


def _plain(plain: PlainLoop, prompts: torch.Tensor, num_tokens: int) -> Run:
    seconds = []
    with torch.inference_mode():
        steps = [plain.prefill(prompts)]
        for _ in range(num_tokens - 1):
            start = time.perf_counter()
            steps.append(plain.step(steps[-1]))
            seconds.append(time.perf_counter() - start)
    return Run(seconds, torch.stack(steps, 1).tolist())


def _report(options: argparse.Namespace, rates: Rates) -> None:
    rows: list[dict[str, object]] = [
        {"what": "plain static-cache loop", "tok_s": rates.plain},
        {
            "what": "engine, base only",
            "tok_s": rates.base,
            "of_plain": _ratio(rates.base, rates.plain),
        },
    ]
    if rates.adapters:
        what = f"engine, {options.adapters} adapters of rank {options.rank} on {options.targets}"
        rows.append(
            {"what": what, "tok_s": rates.adapters, "of_base": _ratio(rates.adapters, rates.base)}
        )
    for row in rows:
        of_round = row["tok_s"]
        assert isinstance(of_round, list)
        row["tok_s"] = round(statistics.median(of_round), 1)
        row["rounds"] = [round(rate, 1) for rate in of_round]
        row |= {k: getattr(options, k) for k in ("batch", "prompt", "dtype", "threads")}
        print(json.dumps(row) if options.json else _text(row), flush=True)


def _ratio(rates: list[float], of: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(rates, of, strict=True)), 3)


def _text(row: dict[str, object]) -> str:
    ratios = "".join(f"  {k} {row[k]:.0%}" for k in ("of_plain", "of_base") if k in row)
    return f"{row['what']:50s} {row['tok_s']:>8} tok/s{ratios}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description=__doc__)
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--adapters", type=int, default=0, help="distinct adapters in the batch")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--targets", default="q_proj,v_proj")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default=_fastest_dtype())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


def _fastest_dtype() -> str:
    """bf16 only where the processor has instructions for it."""
    capable = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if capable else "float32"


if __name__ == "__main__":
    main()

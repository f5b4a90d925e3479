"""One token a row, each with its own parameters, without sorting and without asking the host.

Semantics, for row n, x being its logits after penalties, w[v] = exp((x[v] - max x) / temperature)::

    temperature 0    token = the first v with the largest x
    top_k            keep the k largest, and what equals the least of them
    top_p            of those keep the fewest of the largest whose share of their sum reaches top_p,
                     and what equals the least of them
    min_p            of those keep w[v] >= min_p
    token            = the first v at which the running sum of kept w exceeds uniform[n] * their sum

A row with an x that isn't finite has failed: its token is -1.

Both edges are the least number with less than a bound above it (a count, a sum), so they are found
by search over the floats' bits, in ordered integers: three thresholds a pass over the row, which
stays in the L2 cache. bf16 logits have 16 bits, a penalised row 32. The search sums in float32;
what is drawn is summed in float64 and in a fixed order. Grid (row).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LOWEST = tl.constexpr(-(1 << 31))


@triton.jit
def _block(logits, counts, seen, v, vocab, penalties):
    """[BLOCK] float32 logits of tokens v, penalised; -inf beyond the vocabulary.

    penalties: presence, frequency, repetition, and vocab where there are any, else 0.
    """
    presence, frequency, repetition, counted = penalties
    x = tl.load(logits + v, mask=v < vocab, other=float("-inf")).to(tl.float32)
    if counted > 0:
        count = tl.load(counts + v, mask=v < counted, other=0).to(tl.float32)
        known = (tl.load(seen + v, mask=v < counted, other=0) != 0) | (count > 0)
        x = tl.where(known, tl.where(x < 0, x * repetition, x / repetition), x)
        x -= frequency * count + tl.where(count > 0, presence, 0.0)
        x = tl.where(v < vocab, x, float("-inf"))
    return x


@triton.jit
def _keys(x, shift):
    """Integers in the floats' order; `shift` low bits that never differ are dropped."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> shift


@triton.jit
def _best(logits, counts, seen, vocab, penalties, BLOCK: tl.constexpr):
    """(largest logit, the first token that has it, whether any logit isn't finite)"""
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    bad = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab, BLOCK):
        v = start + tl.arange(0, BLOCK)
        x = _block(logits, counts, seen, v, vocab, penalties)
        bad += ((v < vocab) & ~(tl.abs(x) < float("inf"))).to(tl.int32)
        place = tl.where(x > best, v, place)
        best = tl.maximum(best, x)
    top = tl.max(best)
    return top, tl.min(tl.where(best == top, place, vocab)), tl.max(bad) > 0


@triton.jit
def _edge(
    logits, counts, seen, vocab, penalties, top, rate, shift, low, high, bound,
    WEIGHTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The least key in low .. high above which there is less than `bound`: of weights, or of
    tokens. `high` is such a key. It is always the key of some token, or `low`."""
    while low < high:
        step = (high - low) // 4
        m1 = low + step
        m2 = low + 2 * step
        m3 = low + 3 * step
        s1 = tl.zeros((BLOCK,), tl.float32)
        s2 = tl.zeros((BLOCK,), tl.float32)
        s3 = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab, BLOCK):
            v = start + tl.arange(0, BLOCK)
            x = _block(logits, counts, seen, v, vocab, penalties)
            key = _keys(x, shift)
            w = tl.exp2((x - top) * rate) if WEIGHTS else 1.0
            s1 += tl.where(key > m1, w, 0.0)
            s2 += tl.where(key > m2, w, 0.0)
            s3 += tl.where(key > m3, w, 0.0)
        if tl.sum(s1.to(tl.float64)) < bound:
            high = m1
        elif tl.sum(s2.to(tl.float64)) < bound:
            low = m1 + 1
            high = m2
        elif tl.sum(s3.to(tl.float64)) < bound:
            low = m2 + 1
            high = m3
        else:
            low = m3 + 1
    return high


@triton.jit
def _kept_weight(
    logits, counts, seen, vocab, penalties, top, rate, shift, edge, limit, BLOCK: tl.constexpr
):  # fmt: skip
    """Weight of the `limit` largest, `edge` being the key of the least of them; float64."""
    above = tl.zeros((BLOCK,), tl.float32)
    number = tl.zeros((BLOCK,), tl.int32)
    least = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab, BLOCK):
        v = start + tl.arange(0, BLOCK)
        x = _block(logits, counts, seen, v, vocab, penalties)
        key = _keys(x, shift)
        w = tl.exp2((x - top) * rate)
        above += tl.where(key > edge, w, 0.0)
        number += ((key > edge) & (v < vocab)).to(tl.int32)
        least = tl.maximum(least, tl.where(key == edge, w, 0.0))
    some = (limit - tl.sum(number)) * tl.max(least).to(tl.float64)
    return tl.sum(above.to(tl.float64)) + some


@triton.jit
def _sample(
    logits,  # [N, V], rows stride apart
    settings,  # [N, 7] float64: temperature, top_p, top_k, min_p, presence, frequency, repetition
    uniform,  # [N] float64
    rows,  # [N] int64: which row of counts and seen
    counts,  # [rows, V] int32: outputs so far
    seen,  # [rows, V] bool: tokens of the prompt
    out,  # [N] int64
    vocab,
    stride,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64)
    of = settings + i * 7
    temperature = tl.load(of)
    top_p = tl.load(of + 1)
    top_k = tl.load(of + 2).to(tl.int32)
    presence = tl.load(of + 4).to(tl.float32)
    frequency = tl.load(of + 5).to(tl.float32)
    repetition = tl.load(of + 6).to(tl.float32)
    penalised = (presence != 0) | (frequency != 0) | (repetition != 1)
    penalties = (presence, frequency, repetition, tl.where(penalised, vocab, 0))
    row = tl.load(rows + i) * vocab
    logits += i * stride
    counts += row
    seen += row
    shift = tl.where(penalised, 0, SHIFT)
    top, token, failed = _best(logits, counts, seen, vocab, penalties, BLOCK)
    if (temperature > 0) & (failed == 0):
        rate = 1.4426950408889634 / temperature.to(tl.float32)
        high = tl.max(_keys(tl.zeros((1,), tl.float32) + top, shift)).to(tl.int64)
        edge = tl.cast(LOWEST, tl.int64) >> shift
        limit = tl.where((top_k > 0) & (top_k < vocab), top_k, vocab)
        if limit < vocab:
            edge = _edge(
                logits, counts, seen, vocab, penalties, top, rate, shift, edge, high,
                limit, False, BLOCK,
            )  # fmt: skip
        if top_p < 1:
            bound = top_p * _kept_weight(
                logits, counts, seen, vocab, penalties, top, rate, shift, edge, limit, BLOCK
            )
            edge = _edge(
                logits, counts, seen, vocab, penalties, top, rate, shift, edge, high,
                bound, True, BLOCK,
            )  # fmt: skip
        token = _draw(
            logits, counts, seen, vocab, penalties, tl.load(uniform + i), temperature,
            tl.load(of + 3), top, edge, shift, token, BLOCK,
        )  # fmt: skip
    tl.store(out + i, tl.where(failed, -1, token).to(tl.int64))
    if penalised & (failed == 0):
        tl.store(counts + token, tl.load(counts + token) + 1)


@triton.jit
def _draw(
    logits, counts, seen, vocab, penalties, uniform, temperature, min_p, top, edge, shift, token,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The token at which the running sum of what is kept passes uniform times all of it."""
    total = tl.zeros((), tl.float64)
    for start in range(0, vocab, BLOCK):
        v = start + tl.arange(0, BLOCK)
        x = _block(logits, counts, seen, v, vocab, penalties)
        keep = (_keys(x, shift) >= edge) & (v < vocab)
        # float64 exponentials are slow, and most stretches of a row keep nothing.
        if tl.max(keep.to(tl.int32)) > 0:
            w = tl.exp((x - top).to(tl.float64) / temperature)
            total += tl.sum(tl.where(keep & (w >= min_p), w, 0.0))
    aim = uniform * total
    done = tl.zeros((), tl.float64)
    found = vocab
    for start in range(0, vocab, BLOCK):
        v = start + tl.arange(0, BLOCK)
        x = _block(logits, counts, seen, v, vocab, penalties)
        keep = (_keys(x, shift) >= edge) & (v < vocab)
        if (tl.max(keep.to(tl.int32)) > 0) & (found == vocab):
            w = tl.exp((x - top).to(tl.float64) / temperature)
            w = tl.where(keep & (w >= min_p), w, 0.0)
            running = done + tl.cumsum(w, 0)
            found = tl.min(tl.where((running > aim) & (w > 0), v, vocab))
            done += tl.sum(w)
    return tl.where(found < vocab, found, token)


def sample(
    logits: torch.Tensor,
    params: torch.Tensor,
    uniform: torch.Tensor,
    rows: torch.Tensor,
    counts: torch.Tensor,
    seen: torch.Tensor,
    out: torch.Tensor,
    block: int = 4096,
) -> None:
    """out [N] int64 of logits [N, V]; params [N, 7] and uniform [N] float64, rows [N] int64.

    counts [rows, V] int32 and seen [rows, V] bool are those of penalised rows; counts of the tokens
    drawn for such rows go up by one, so rows with penalties must be distinct. block: logits that a
    program handles at a time, a power of two.
    """
    vocab = logits.shape[1]
    block = min(block, triton.next_power_of_2(vocab))
    _sample[(len(out),)](
        logits,
        params,
        uniform,
        rows,
        counts,
        seen,
        out,
        vocab,
        logits.stride(0),
        SHIFT=16 if logits.dtype == torch.bfloat16 else 0,
        BLOCK=block,
        num_warps=max(1, min(16, block // 256)),
    )

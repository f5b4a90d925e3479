"""The yardstick: a plain decode loop over a static cache, as short as it can be written.

Every sequence of its batch has the same length and nothing ever joins or leaves, so it needs no
pages, no mask, no scheduler and no adapters. It uses the weights of the engine beside it.
"""

from __future__ import annotations

import time
from collections.abc import Generator

import torch
import torch.nn.functional as F

from engine.model.rope import Rope
from engine.model.spec import BackboneSpec
from engine.model.weights import Weights


class PlainLoop:
    """Greedy decoding of B sequences of equal length, at most `max_len` tokens each."""

    def __init__(self, spec: BackboneSpec, weights: Weights, batch: int, max_len: int) -> None:
        self._spec = spec
        self._weights = weights
        dtype = weights.embed.dtype
        self._rope = Rope(spec.rope, spec.head_dim, max_len, dtype)
        shape = (spec.num_layers, 2, batch, spec.num_kv_heads, max_len, spec.head_dim)
        self._cache = torch.zeros(shape, dtype=dtype)
        self._length = 0
        self.tokens: list[list[int]] = []

    def decode(self, prompts: torch.Tensor, max_tokens: int) -> Generator[float, None, None]:
        """Read prompts [B, n], then yield the seconds of each step. Afterwards `tokens` holds what
        was answered; whatever the cache held before is forgotten."""
        self._length = 0
        steps = [self._pass(prompts)]
        while len(steps) < max_tokens:
            start = time.perf_counter()
            steps.append(self._pass(steps[-1][:, None]))
            yield time.perf_counter() - start
        self.tokens = torch.stack(steps, 1).tolist()

    @torch.inference_mode()
    def _pass(self, tokens: torch.Tensor) -> torch.Tensor:
        spec, end = self._spec, self._length + tokens.shape[1]
        positions = torch.arange(self._length, end).repeat(len(tokens))
        angles = self._rope.at(positions)
        x = F.embedding(tokens.reshape(-1), self._weights.embed)
        for layer, w in enumerate(self._weights.layers):
            qkv = F.linear(self._norm(x, w.input_norm), w.qkv, w.qkv_bias)
            qkv = qkv.view(len(x), -1, spec.head_dim)
            qk, v = qkv[:, : -spec.num_kv_heads], qkv[:, -spec.num_kv_heads :]
            if w.qk_norm is not None:
                qk = F.rms_norm(qk, (spec.head_dim,), None, spec.rms_norm_eps) * w.qk_norm
            qk = self._rope.apply(qk, angles)
            h = self._attend(layer, tokens.shape, qk[:, : spec.num_heads], qk, v)
            x = x + F.linear(h, w.o, w.o_bias)
            gate, up = F.linear(self._norm(x, w.post_norm), w.gate_up, w.gate_up_bias).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, w.down, w.down_bias)
        self._length = end
        last = x.view(*tokens.shape, -1)[:, -1]
        return F.linear(self._norm(last, self._weights.norm), self._weights.head).argmax(-1)

    def _attend(
        self, layer: int, shape: torch.Size, q: torch.Tensor, qk: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        spec, (batch, num) = self._spec, shape
        start, end = self._length, self._length + num
        cache = self._cache[layer]
        for side, new in enumerate((qk[:, spec.num_heads :], v)):
            cache[side, :, :, start:end] = new.reshape(batch, num, -1, spec.head_dim).transpose(
                1, 2
            )
        keys, values = cache[:, :, :, :end]
        shared = spec.num_heads // spec.num_kv_heads
        if num > 1:
            keys, values = (t.repeat_interleave(shared, 1) for t in (keys, values))
            q = q.reshape(batch, num, -1, spec.head_dim).transpose(1, 2)
            out = F.scaled_dot_product_attention(q, keys, values, is_causal=True)
            return out.transpose(1, 2).reshape(batch * num, -1)
        q = q.reshape(batch, spec.num_kv_heads, shared, spec.head_dim) * spec.head_dim**-0.5
        scores = torch.matmul(q, keys.transpose(2, 3))
        return torch.matmul(torch.softmax(scores, -1), values).view(batch, -1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._spec.rms_norm_eps)

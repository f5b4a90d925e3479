"""Rotary position embedding: a table of angles made once, applied to q and k together."""

from __future__ import annotations

import math

import torch

from engine.model.rope_spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] float32 radians per position."""
    powers = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**powers)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequencies)
    return frequencies


def _llama3(rope: RopeSpec, frequencies: torch.Tensor) -> torch.Tensor:
    """Long waves are divided by the factor, short ones kept, those between blended."""
    waves = 2 * math.pi / frequencies
    longest = rope.original_max_position / rope.low_freq_factor
    shortest = rope.original_max_position / rope.high_freq_factor
    share = (rope.original_max_position / waves - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * frequencies / rope.factor + share * frequencies
    scaled = torch.where(waves > longest, frequencies / rope.factor, blended)
    return torch.where(waves < shortest, frequencies, scaled)


class Rope:
    """Cosines and sines of every position below `num_positions`, in the serving dtype."""

    def __init__(
        self, rope: RopeSpec, head_dim: int, num_positions: int, dtype: torch.dtype
    ) -> None:
        positions = torch.arange(num_positions).float()
        angles = positions[:, None] * inverse_frequencies(rope, head_dim)
        self._half = head_dim // 2
        self._cos = torch.cat([angles.cos(), angles.cos()], -1).to(dtype)
        # The first half of a rotated vector takes minus the second: the sign is in the table.
        self._sin = torch.cat([-angles.sin(), angles.sin()], -1).to(dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, signed sin), each [T, 1, head_dim]. positions [T] int64."""
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def apply(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Rotate x [T, heads, head_dim] by the angles of its tokens."""
        cos, sin = angles
        swapped = torch.cat([x[..., self._half :], x[..., : self._half]], -1)
        return torch.addcmul(x * cos, swapped, sin)

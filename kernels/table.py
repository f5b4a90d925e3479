"""The adapter table: where each adapter's weights for each module lie in the arena.

A table is one int64 tensor [G, M, 6], G adapter indices by M modules, with the columns below.
Offsets count elements from the start of the arena. Rank 0 means that the adapter does not touch
the module. Offset 0 is never a weight's (page 0 is reserved), so bias 0 means no bias.

An adapter adds to module m's output, for an input row x::

    y[o] += scale * (sum over r of (sum over i of x[i] A[r, i]) B[r, o] + bias[o])

A is [rank, in] and B is [rank, out], rank outermost. A lookup (an embedding) keeps A as [in, rank]
and reads its row x, a token id.
"""

from __future__ import annotations

import struct

import torch

A, B, RANK, SCALE, BIAS, RESERVED = range(6)
COLUMNS = 6


def scale_bits(scale: float) -> int:
    """The SCALE column of a scale: its float32 bits."""
    return int(struct.unpack("<i", struct.pack("<f", scale))[0])


def empty_table(num_adapters: int, num_modules: int) -> torch.Tensor:
    """A table whose every entry is absent."""
    return torch.zeros(num_adapters, num_modules, COLUMNS, dtype=torch.int64)


def scales(table: torch.Tensor) -> torch.Tensor:
    """[G, M] float32 scales of a table."""
    return table[..., SCALE].to(torch.int32).view(torch.float32)

"""How many blocks rows can need: what a caller that fixes no bucket makes room for."""

from __future__ import annotations


def most_blocks(num_rows: int, block_rows: int, num_adapters: int) -> int:
    """Blocks that `num_rows` rows can need at most, with `num_adapters` distinct adapters."""
    groups = min(num_rows, num_adapters + 1)
    return (num_rows - groups) // block_rows + groups

"""How an adapter lies in memory: one flat block, the same in host memory and in the arena.

Per group of modules that share an input: the A of each, then the B of each, then biases. A is
[rank, in] and B is [rank, out], rank outermost, so that a run-time rank is only a loop bound;
embed_tokens keeps A as [vocabulary, rank], since it is gathered by token. Every part starts on a
multiple of `ALIGN` elements (128 bytes in bf16). Offsets count elements from the block's start, so
a layout holds for every serving dtype. Nothing is padded to a maximum rank.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.model.modules import ModuleTable

ALIGN = 64
ABSENT = -1


@dataclass(frozen=True, slots=True)
class ModuleBlock:
    """Where one module's weights lie. Offsets in elements; `bias` is ABSENT where there is none."""

    module: int
    rank: int
    a: int
    b: int
    bias: int
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    blocks: tuple[ModuleBlock, ...]
    num_elements: int


@dataclass(frozen=True, slots=True)
class ModuleShape:
    """What the layout needs to know of one module of an adapter."""

    rank: int
    scale: float
    has_bias: bool = False


def layout(shapes: Mapping[int, ModuleShape], table: ModuleTable) -> AdapterLayout:
    """The block of an adapter that has `shapes` (by module id)."""
    blocks: list[ModuleBlock] = []
    end = 0

    def place(num_elements: int) -> int:
        nonlocal end
        start = end
        end += -(-num_elements // ALIGN) * ALIGN
        return start

    for group in table.groups:
        present = [(table.modules[m], shapes[m]) for m in group if m in shapes]
        a = [place(s.rank * m.in_features) for m, s in present]
        b = [place(s.rank * m.out_features) for m, s in present]
        bias = [place(m.out_features) if s.has_bias else ABSENT for m, s in present]
        blocks += [
            ModuleBlock(m.id, s.rank, a[i], b[i], bias[i], s.scale)
            for i, (m, s) in enumerate(present)
        ]
    return AdapterLayout(tuple(sorted(blocks, key=lambda x: x.module)), end)

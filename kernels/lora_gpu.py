"""The grouped adapter term on a GPU, for graphs that serve every set of adapters up to a rank.

`LoraGpu` holds the arena, the table and the workspaces at fixed addresses. It is bound to a bucket:
so many rows in so many blocks (`kernels.blocks`), both device buffers that change from step to
step, and the largest rank there may be. What is launched depends on the bucket alone; ranks,
scales, offsets and absent modules are read on the device. In a step: `begin`, then for each group
of modules `shrink` (at any time once x is there, on another stream if that pays) and either
`expand` or a fused kernel that takes `term`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
import triton

from kernels.blocks import RowBlocks
from kernels.entries import sort_blocks
from kernels.expand import expand_kernel
from kernels.norm import Squares
from kernels.segments import Ints
from kernels.shrink import lookup_kernel, shrink_kernel
from kernels.table import COLUMNS
from kernels.tile import is_exact
from kernels.tuning import Tuning, rank_caps, tuning_for

MAX_SLICES = 3
MAX_BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True)
class Term:
    """What is left of a shrink for whoever adds the term.

    factors  [N] float32: what the rows' projections are multiplied by; None: not known
    part     [parts, N, stride] float32, a slice's ranks from slice x rank_cap on
    entries  [S, M, 6], blocks: in the order of `sort_blocks`; module: the first of the group's
    """

    part: torch.Tensor
    factors: torch.Tensor | None
    arena: torch.Tensor
    entries: torch.Tensor
    blocks: RowBlocks
    module: int
    rank_cap: int
    exact: bool

    @property
    def num_parts(self) -> int:
        return self.part.shape[0]

    @property
    def stride(self) -> int:
        return self.part.shape[2]


class LoraGpu:
    """The term for one arena and one table.

    arena [elements] and table [G, M, 6] (`kernels.table`) on the device. features [M, 2]: in and
    out of each module. No entry's rank exceeds max_rank. A step has at most max_rows rows in
    max_blocks blocks. num_workspaces: shrinks whose terms may be alive at a time.
    """

    def __init__(
        self,
        arena: torch.Tensor,
        table: torch.Tensor,
        features: Ints,
        *,
        max_rows: int,
        max_blocks: int,
        max_rank: int,
        num_workspaces: int = 4,
        tuning: Tuning | None = None,
    ) -> None:
        self.arena, self.table, self.features = arena, table, features
        self._tuning = tuning
        self.rank_cap = rank_caps(max_rank)[-1]
        self.part_rows = max(max_rows, 4096)
        device = arena.device
        self.parts = torch.empty(
            num_workspaces, self.part_rows * MAX_SLICES * self.rank_cap, device=device
        )
        self.factors = torch.empty(num_workspaces, max_rows, device=device)
        shape = (max_blocks, table.shape[1], COLUMNS)
        self.entries = torch.zeros(shape, dtype=torch.int64, device=device)
        self.rows = torch.empty(max_blocks * MAX_BLOCK_ROWS, dtype=torch.int32, device=device)
        self.weights = torch.empty(max_blocks, dtype=torch.int64, device=device)
        self.exact = is_exact(arena.dtype)

    def tuning(self, blocks: RowBlocks) -> Tuning:
        """Of a graph with such blocks."""
        return self._tuning or tuning_for(blocks.block_rows, blocks.num_blocks)

    def bind(self, blocks: RowBlocks, rank_cap: int | None = None) -> BoundLoraGpu:
        """The term of a bucket. The blocks' contents may change between steps. rank_cap: one of
        `rank_caps`, that no rank in the blocks exceeds; None: the largest."""
        return BoundLoraGpu(self, blocks, rank_cap or self.rank_cap)


class BoundLoraGpu:
    def __init__(self, of: LoraGpu, blocks: RowBlocks, rank_cap: int) -> None:
        self._of = of
        self.blocks, self.rank_cap = blocks, rank_cap
        self.tuning = of.tuning(blocks)
        num, block_rows = blocks.num_blocks, blocks.block_rows
        self._entries = of.entries[:num]
        rows = of.rows[: num * block_rows].view(num, block_rows)
        self._sorted = RowBlocks(blocks.num_rows, rows, blocks.adapters)

    def begin(self) -> None:
        """Read the table for this step's blocks, which are sorted so that large ranks come first.

        A kernel takes as long as its slowest program, which had better not start last.
        """
        of, blocks = self._of, self.blocks
        sort_blocks(of.table, blocks, of.weights, self._sorted.rows, self._entries)

    def shrink(
        self,
        modules: Sequence[int],
        x: torch.Tensor,
        workspace: int = 0,
        squares: Squares | None = None,
    ) -> Term:
        """x A of consecutive `modules` that share x [N, in], into a workspace. squares: of x, where
        what is projected is to be normalised."""
        of, blocks, tile = self._of, self.blocks, self.tuning.shrink
        k = x.shape[1]
        parts = self.num_parts(modules, x)
        term = self.term(modules, workspace, parts, squares)
        chunks = self._num_chunks(parts * len(modules))
        shrink_kernel[(parts, len(modules) * chunks, blocks.num_blocks)](
            x,
            of.arena,
            self._entries,
            self._sorted.rows,
            term.part,
            x if squares is None else squares.parts,
            x if term.factors is None else term.factors,
            0.0 if squares is None else squares.eps,
            modules[0],
            self._entries.shape[1],
            blocks.num_rows,
            x.stride(0),
            PARTS=0 if squares is None else squares.num_parts,
            K=k,
            SPLIT=parts,
            STRIDE=term.stride,
            RCAP=self.rank_cap,
            CHUNKS=chunks,
            M=blocks.block_rows,
            BK=max(16, min(tile.width * 2 // x.element_size(), triton.next_power_of_2(k))),
            STAGES=tile.stages,
            EXACT=of.exact,
            num_warps=tile.warps,
        )
        return term

    def num_parts(self, modules: Sequence[int], x: torch.Tensor) -> int:
        """Parts of k that a shrink of `modules` leaves."""
        blocks = self.blocks
        most = self._of.part_rows // blocks.num_rows
        return self.tuning.num_parts(blocks.num_blocks * len(modules), x.shape[1], most)

    def _num_chunks(self, programs_per_block: int) -> int:
        """Of a shrink. Blocks of one row are many, and so fill the chip evenly."""
        if self.blocks.block_rows == 1:
            return 1
        return self.tuning.num_chunks(programs_per_block * self.blocks.num_blocks, self.rank_cap)

    def lookup(self, module: int, tokens: torch.Tensor, workspace: int = 0) -> Term:
        """The same for an embedding: rows `tokens` [N] int64 of its A."""
        of, blocks = self._of, self.blocks
        term = self.term((module,), workspace, 1)
        lookup_kernel[(blocks.num_blocks,)](
            tokens,
            of.arena,
            self._entries,
            self._sorted.rows,
            term.part,
            module,
            self._entries.shape[1],
            blocks.num_rows,
            STRIDE=term.stride,
            RCAP=self.rank_cap,
            M=blocks.block_rows,
        )
        return term

    def expand(self, term: Term, num_modules: int, y: torch.Tensor) -> None:
        """Add a term of `num_modules` modules to y [N, sum of out] in place."""
        of, blocks, tile = self._of, self.blocks, self.tuning.expand
        widths = [int(of.features[term.module + i, 1]) for i in range(num_modules)]
        tiles = sum(triton.cdiv(width, tile.width) for width in widths)
        widths += [0] * (MAX_SLICES - num_modules)
        expand_kernel[(tiles, blocks.num_blocks)](
            term.part,
            of.arena,
            self._entries,
            self._sorted.rows,
            y,
            term.module,
            self._entries.shape[1],
            blocks.num_rows,
            y.stride(0),
            W0=widths[0],
            W1=widths[1],
            W2=widths[2],
            SPLIT=term.num_parts,
            STRIDE=term.stride,
            RCAP=term.rank_cap,
            M=blocks.block_rows,
            BN=tile.width,
            ALIGN=gcd(16, *widths),
            EXACT=of.exact,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )

    def add(self, modules: Sequence[int], x: torch.Tensor, y: torch.Tensor) -> None:
        """Add the term of `modules` to y [N, sum of out], whose columns are theirs in order."""
        self.expand(self.shrink(modules, x), len(modules), y)

    def add_embedding(self, module: int, tokens: torch.Tensor, y: torch.Tensor) -> None:
        """Add the term of a lookup to y [N, out]; tokens [N] int64."""
        self.expand(self.lookup(module, tokens), 1, y)

    def term(
        self,
        modules: Sequence[int],
        workspace: int,
        parts: int,
        squares: Squares | None = None,
    ) -> Term:
        """The view of a workspace that a shrink of `modules` fills."""
        of, num_rows = self._of, self.blocks.num_rows
        stride = len(modules) * self.rank_cap
        part = of.parts[workspace, : parts * num_rows * stride].view(parts, num_rows, stride)
        return Term(
            part,
            None if squares is None else of.factors[workspace, :num_rows],
            of.arena,
            self._entries,
            self._sorted,
            modules[0],
            self.rank_cap,
            of.exact,
        )

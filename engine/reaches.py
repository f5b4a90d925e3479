"""What adapters on the device reach, so that each step takes the cheapest graph that serves it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engine.buckets import Reach
from engine.model.modules import LAYER_MODULES, ModuleTable
from engine.plan import TableEntry
from kernels.segments import Ints

AROUND_ATTENTION = frozenset(
    i for i, name in enumerate(LAYER_MODULES) if name.startswith("self_attn.")
)


class Reaches:
    """By adapter index below num_adapters; nothing of those that no entry named yet."""

    def __init__(self, num_adapters: int, modules: ModuleTable) -> None:
        self._rank = np.zeros(num_adapters, np.int64)
        self._everywhere = np.zeros(num_adapters, bool)
        self._on_head: set[int] = set()
        self._head = modules.lm_head.id
        self._num_in_layers = modules.num_layers * len(LAYER_MODULES)

    def note(self, entries: Iterable[TableEntry]) -> None:
        """Entries of a plan, which hold from its pass on."""
        for entry in entries:
            blocks = () if entry.layout is None else entry.layout.blocks
            layers = [block for block in blocks if block.module != self._head]
            self._rank[entry.adapter] = max((block.rank for block in layers), default=0)
            self._everywhere[entry.adapter] = any(self._is_elsewhere(b.module) for b in layers)
            self._on_head.discard(entry.adapter)
            if len(layers) < len(blocks):
                self._on_head.add(entry.adapter)

    def of(self, adapters: Ints) -> Reach:
        """Of a step's adapters; -1 where a sequence has none."""
        used = adapters[adapters >= 0]
        if not len(used):
            return Reach()
        return Reach(int(self._rank[used].max()), bool(self._everywhere[used].any()))

    def any_on_head(self, adapters: Iterable[int]) -> bool:
        """Whether lm_head has a term for one of them; -1 as above."""
        return not self._on_head.isdisjoint(adapters)

    def _is_elsewhere(self, module: int) -> bool:
        in_layer = module % len(LAYER_MODULES)
        return module >= self._num_in_layers or in_layer not in AROUND_ATTENTION

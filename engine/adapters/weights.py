"""An adapter's weights in host memory, and how they become the block that the arena holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.adapters.layout import AdapterLayout, ModuleBlock, ModuleShape, layout
from engine.adapters.naming import tensor_name
from engine.errors import AdapterRejected
from engine.model.modules import Module, ModuleTable

SERVING_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""By the names of `engine.config.Dtype`."""


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """One module's LoRA: its output gains scale x (B A x + bias).

    a     [rank, in]; for embed_tokens `in` is the vocabulary
    b     [out, rank]
    bias  [out], or None
    """

    a: Tensor
    b: Tensor
    scale: float
    bias: Tensor | None = None

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class Adapter:
    """The weights of one version, by module id, each in the dtype it was stored in."""

    modules: Mapping[int, ModuleWeights]
    table: ModuleTable

    @property
    def shapes(self) -> dict[int, ModuleShape]:
        return {
            m: ModuleShape(w.rank, w.scale, w.bias is not None) for m, w in self.modules.items()
        }

    def layout(self) -> AdapterLayout:
        return layout(self.shapes, self.table)

    @property
    def is_identity(self) -> bool:
        """Every B and bias is zero: it answers as the base does."""
        parts = [w.b for w in self.modules.values()]
        parts += [w.bias for w in self.modules.values() if w.bias is not None]
        return not any(bool(part.any()) for part in parts)

    def check(self) -> None:
        """Assert that each part has exactly the shape its module gives it."""
        assert self.modules
        for module_id, weights in self.modules.items():
            module = self.table.modules[module_id]
            assert weights.rank > 0
            assert weights.a.shape == (weights.rank, module.in_features), module.name
            assert weights.b.shape == (module.out_features, weights.rank), module.name
            assert weights.bias is None or weights.bias.shape == (module.out_features,), module.name


def pack(adapter: Adapter, where: AdapterLayout, dtype: torch.dtype, out: memoryview) -> None:
    """Write the block of `adapter` to `out`, in the serving dtype; gaps become zeros.

    `out` has exactly `where.num_elements` items of that dtype. Nothing beyond it is touched, and
    there is no copy in between. Raises AdapterRejected naming the tensor whose values are not
    finite in that dtype.
    """
    if out.nbytes != where.num_elements * dtype.itemsize:
        raise ValueError(f"a block of {where.num_elements} elements in {out.nbytes} bytes")
    flat = torch.frombuffer(out, dtype=dtype)
    flat.zero_()
    for block in where.blocks:
        module = adapter.table.modules[block.module]
        is_embedding = module == adapter.table.embed_tokens
        for which, view, source in _parts(block, module, flat, adapter, is_embedding):
            view.copy_(source)
            if not bool(torch.isfinite(view).all()):
                name = tensor_name(module.name, which, embedding=is_embedding)
                raise AdapterRejected(
                    f"{name} holds values that are not finite in {str(dtype).split('.')[-1]}."
                    " Train again with a lower learning rate, or clip it.",
                    code="adapter_not_finite",
                    param=name,
                )


def _parts(
    block: ModuleBlock, module: Module, flat: Tensor, adapter: Adapter, is_embedding: bool
) -> list[tuple[str, Tensor, Tensor]]:
    """(part, its place in the block, what goes there) of one module, of equal shapes."""
    weights, rank = adapter.modules[block.module], block.rank
    size_in, size_out = module.in_features, module.out_features
    a = flat[block.a : block.a + rank * size_in]
    a_view = a.view(size_in, rank).t() if is_embedding else a.view(rank, size_in)
    b_view = flat[block.b : block.b + rank * size_out].view(rank, size_out).t()
    parts = [("A", a_view, weights.a), ("B", b_view, weights.b)]
    if weights.bias is not None:
        parts.append(("bias", flat[block.bias : block.bias + size_out], weights.bias))
    return parts

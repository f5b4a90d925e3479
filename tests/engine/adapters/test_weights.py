"""The block that the arena holds: every element where the layout says, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.adapters.layout import ABSENT, ALIGN
from engine.adapters.weights import Adapter, ModuleWeights, pack
from engine.errors import AdapterRejected
from engine.model.modules import module_table

TABLE = module_table(num_layers=2, hidden=6, intermediate=10, q_out=8, kv_out=4, vocab=12)
MODULES = len(TABLE.modules)


def adapter(ranks: dict[int, int], biases=(), dtypes=(torch.float32,)) -> Adapter:
    modules = {}
    for i, (module_id, rank) in enumerate(ranks.items()):
        module, dtype = TABLE.modules[module_id], dtypes[i % len(dtypes)]
        modules[module_id] = ModuleWeights(
            torch.randn(rank, module.in_features).to(dtype),
            torch.randn(module.out_features, rank).to(dtype),
            scale=float(i + 1),
            bias=torch.randn(module.out_features).to(dtype) if module_id in biases else None,
        )
    made = Adapter(modules, TABLE)
    made.check()
    return made


def packed(made: Adapter, dtype=torch.float32, guard=64) -> torch.Tensor:
    """The block; the memory around it must stay as it was."""
    layout = made.layout()
    size = layout.num_elements * dtype.itemsize
    memory = bytearray(b"\xaa" * (size + 2 * guard))
    pack(made, layout, dtype, memoryview(memory)[guard : guard + size])
    assert memory[:guard] == memory[guard + size :] == b"\xaa" * guard
    return torch.frombuffer(memory, dtype=torch.uint8)[guard : guard + size].clone().view(dtype)


@settings(max_examples=60)
@given(
    ranks=st.dictionaries(st.integers(0, MODULES - 1), st.integers(1, 9), min_size=1),
    biases=st.sets(st.integers(0, MODULES - 3)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_every_element_lies_where_the_layout_says(ranks, biases, dtype):
    made = adapter(ranks, biases, (torch.float32, torch.bfloat16, torch.float16))
    block, layout = packed(made, dtype), made.layout()
    covered = torch.zeros(layout.num_elements, dtype=torch.bool)
    for place in layout.blocks:
        module, weights = TABLE.modules[place.module], made.modules[place.module]
        rank, size_in, size_out = place.rank, module.in_features, module.out_features
        a = block[place.a : place.a + rank * size_in]
        b = block[place.b : place.b + rank * size_out]
        if module == TABLE.embed_tokens:
            assert torch.equal(a.view(size_in, rank), weights.a.to(dtype).t())
        else:
            assert torch.equal(a.view(rank, size_in), weights.a.to(dtype))
        assert torch.equal(b.view(rank, size_out), weights.b.to(dtype).t())
        assert place.scale == weights.scale
        spans = [(place.a, rank * size_in), (place.b, rank * size_out)]
        if weights.bias is None:
            assert place.bias == ABSENT
        else:
            bias = block[place.bias : place.bias + size_out]
            assert torch.equal(bias, weights.bias.to(dtype))
            spans.append((place.bias, size_out))
        for start, size in spans:
            assert start % ALIGN == 0 and not covered[start : start + size].any()
            covered[start : start + size] = True
    # What lay there before belonged to somebody else.
    assert not block[~covered].any()


def test_a_block_needs_exactly_its_own_room():
    made = adapter({0: 2})
    for num_bytes in (made.layout().num_elements * 4 - 4, made.layout().num_elements * 4 + 4):
        with pytest.raises(ValueError, match="elements in"):
            pack(made, made.layout(), torch.float32, memoryview(bytearray(num_bytes)))


# A-NONFINITE
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["A", "B", "bias"])
def test_a_value_that_is_not_finite_is_rejected_by_its_tensor(value, part):
    """A-NONFINITE."""
    made = adapter({0: 2, 9: 3}, biases={9})
    weights = made.modules[9]
    tensor = {"A": weights.a, "B": weights.b, "bias": weights.bias}[part]
    tensor.view(-1)[1] = value
    leaf = "lora_B.bias" if part == "bias" else f"lora_{part}.weight"
    with pytest.raises(AdapterRejected, match=f"model.layers.1.self_attn.v_proj.{leaf}"):
        packed(made)


@pytest.mark.parametrize(
    ("value", "dtype", "fits"),
    [
        (1e6, torch.float16, False),
        (6e4, torch.float16, True),
        (3.4e38, torch.bfloat16, False),
        (1e38, torch.bfloat16, True),
        (1e300, torch.float32, False),
    ],
)
def test_what_overflows_in_the_serving_dtype_is_rejected(value, dtype, fits):
    made = adapter({0: 2}, dtypes=(torch.float64,))
    made.modules[0].b[0, 0] = value
    if fits:
        packed(made, dtype)
        return
    with pytest.raises(AdapterRejected, match=f"not finite in {str(dtype)[6:]}"):
        packed(made, dtype)


def test_an_embedding_that_is_not_finite_has_its_own_name():
    made = adapter({MODULES - 2: 2})
    made.modules[MODULES - 2].a[0, 0] = math.nan
    with pytest.raises(AdapterRejected, match="lora_embedding_A"):
        packed(made)


def test_an_adapter_with_nothing_in_b_is_an_identity():
    made = adapter({0: 2, 1: 2}, biases={0})
    assert not made.is_identity
    for weights in made.modules.values():
        weights.b.zero_()
    assert not made.is_identity
    made.modules[0].bias.zero_()
    assert made.is_identity


def test_casting_rounds_to_nearest_and_ties_to_even():
    made = adapter({0: 1})
    made.modules[0].a[0] = torch.tensor(np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1, 2, 3, 4]))
    block = packed(made, torch.bfloat16)
    assert block[:2].tolist() == [1.0, 1 + 2**-6]

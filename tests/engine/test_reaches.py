"""What an adapter reaches, against its modules' names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.layout import ModuleShape, layout
from engine.buckets import Reach
from engine.model.modules import module_table
from engine.plan import TableEntry
from engine.reaches import Reaches

TABLE = module_table(num_layers=2, hidden=64, intermediate=96, q_out=64, kv_out=32, vocab=100)
IDS = st.dictionaries(st.sampled_from(range(len(TABLE.modules))), st.integers(1, 40))


@given(st.lists(IDS, min_size=1, max_size=4), st.data())
def test_a_batch_reaches_what_its_adapters_do(adapters, data):
    reaches = Reaches(len(adapters) + 1, TABLE)
    # What was there before leaves nothing behind.
    before = layout({m.id: ModuleShape(50, 1.0) for m in TABLE.modules}, TABLE)
    reaches.note(TableEntry(i, 1, before) for i in range(len(adapters)))
    reaches.note(
        TableEntry(i, 1, layout({m: ModuleShape(r, 1.0) for m, r in ranks.items()}, TABLE))
        for i, ranks in enumerate(adapters)
    )
    batch = data.draw(st.lists(st.integers(-1, len(adapters)), max_size=6))
    used = [adapters[i] for i in batch if 0 <= i < len(adapters)]
    names = {m.id: m.name for m in TABLE.modules}
    inner = [
        (names[m], rank) for ranks in used for m, rank in ranks.items() if m != TABLE.lm_head.id
    ]
    want = Reach(
        max((rank for _, rank in inner), default=0),
        any("self_attn" not in name for name, _ in inner),
    )
    assert reaches.of(np.array(batch, np.int64)) == want
    assert reaches.any_on_head(batch) == any(TABLE.lm_head.id in ranks for ranks in used)


@pytest.mark.parametrize("module", TABLE.modules, ids=lambda module: module.name)
def test_each_module_alone(module):
    reaches = Reaches(1, TABLE)
    reaches.note([TableEntry(0, 1, layout({module.id: ModuleShape(5, 1.0)}, TABLE))])
    on_head = module == TABLE.lm_head
    want = Reach() if on_head else Reach(5, "self_attn" not in module.name)
    assert reaches.of(np.array([0])) == want
    assert reaches.any_on_head([0]) == on_head


def test_an_adapter_that_is_gone_reaches_nothing():
    reaches = Reaches(3, TABLE)
    reaches.note([TableEntry(1, 1, layout({4: ModuleShape(8, 1.0)}, TABLE))])
    assert reaches.of(np.array([1])) == Reach(8, True)
    reaches.note([TableEntry(1, 0, None)])
    assert reaches.of(np.array([1, -1])) == Reach()


def test_an_index_that_is_given_to_another_in_one_plan_reaches_what_that_one_does():
    reaches = Reaches(3, TABLE)
    reaches.note([TableEntry(1, 1, layout({4: ModuleShape(8, 1.0)}, TABLE))])
    other = layout({TABLE.lm_head.id: ModuleShape(2, 1.0), 0: ModuleShape(3, 1.0)}, TABLE)
    reaches.note([TableEntry(1, 0, None), TableEntry(1, 2, other)])
    assert reaches.of(np.array([1])) == Reach(3)
    assert reaches.any_on_head([1])

"""Paged attention against plain loops: chunks and decoding rows, windows, groups, head sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.device_batch import attention_tiles
from kernels import reference_layer
from kernels.paged_attention import PagedAttention, Tiles
from kernels.rotary import Heads

LAYERS, NUM_PAGES, MAX_PAGES = 2, 48, 10


@pytest.mark.parametrize(
    ("most", "spans"),
    [(1, [(2, 13, 1), (0, 70, 1), (3, 0, 1)]), (16, [(2, 13, 5), (0, 0, 37), (3, 40, 1)])],
    ids=["decode", "chunks"],
)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("sizes", [(4, 2, 16), (6, 2, 24), (8, 2, 64)], ids=str)
def test_every_token_sees_what_lies_before_it(device, most, spans, window, sizes):
    """spans: (row, first position, tokens). Pages lie anywhere; what isn't read is NaN."""
    num_heads, num_kv_heads, dim = sizes
    page = 16 if most == 1 else 8
    heads = Heads(num_heads, num_kv_heads, dim, page, 2 * LAYERS * num_kv_heads * page * dim)
    pages = torch.randperm(NUM_PAGES - 1)[: 4 * MAX_PAGES].view(4, MAX_PAGES) + 1
    kv = torch.randn(NUM_PAGES, LAYERS, 2, num_kv_heads, page, dim)
    row, start, count = np.array(spans).T
    for r, s, c in spans:
        used = s + c
        kv[pages[r, used // page], :, :, :, used % page :] = torch.nan
        kv[pages[r, used // page + 1 :]] = torch.nan
    first = np.cumsum(count) - count
    num = int(count.sum())
    tiles = np.zeros((4, num + 1 if most == 1 else num // most + len(spans) + 1), np.int32)
    attention_tiles(row, first, count, start + count, most, tiles)
    q = torch.randn(num + 1, (num_heads + 2 * num_kv_heads) * dim)
    out = torch.full((num + 1, num_heads * dim), torch.nan, device=device)
    arena = kv.reshape(-1).to(device)
    attention = PagedAttention(heads, arena, 16)
    attention.attend(
        q.to(device),
        Tiles(torch.from_numpy(tiles).to(device), most),
        pages.to(torch.int32).to(device),
        1,
        window,
        out,
    )
    for (r, s, c), begin in zip(spans, first, strict=True):
        keys, values = (
            kv[pages[r], 1, side].transpose(1, 2).reshape(-1, num_kv_heads, dim) for side in (0, 1)
        )
        for i in range(c):
            one = q[begin + i, : num_heads * dim].view(num_heads, dim)
            wanted = reference_layer.attention(one, keys, values, s + i, window)
            got = out[begin + i].view(num_heads, dim).double().cpu()
            assert (got - wanted).norm() <= 1e-5 * wanted.norm()

"""More adapters than there is room for: throughput beside that with room for all, on a GPU.

All adapters stay in host memory; those that wait for room on the device take turns there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.bench.dummy_server import DTYPE, DummyServer, Served
from engine.types import Request

TIMES = 4
"""The working set, over the room."""
CLIENTS_PER_ROW = 2


def working_set(
    server: DummyServer, options: argparse.Namespace, num_adapters: int
) -> dict[str, Any]:
    """Clients come one after the other, two for each row: each asks for the next answer, of an
    adapter drawn uniformly, when it has its last. Once all adapters have room, then a quarter."""
    num_room = max(1, num_adapters // TIMES)
    resident = _serve(server, options, num_adapters, num_adapters)
    served = _serve(server, options, num_adapters, num_room)
    counts = server.engine.scheduler.cache.counts
    num_evicted = counts.num_evicted
    server.begin_anew()
    return {
        "bench": "working_set",
        "adapters": num_adapters,
        "room": num_room,
        "rank": options.rank,
        "targets": options.targets,
        "clients": CLIENTS_PER_ROW * options.max_seqs,
        "out_tok_s": round(_rate(served), 1),
        "resident_out_tok_s": round(_rate(resident), 1),
        "of_resident": round(_rate(served) / _rate(resident), 3),
        "longest_wait_s": round(_longest_wait_s(served), 2),
        "resident_longest_wait_s": round(_longest_wait_s(resident), 2),
        "evictions": num_evicted,
    }


def _serve(
    server: DummyServer, options: argparse.Namespace, num_adapters: int, num_room: int
) -> Served:
    """With room for so many adapters beside the KV of all rows."""
    page_tokens = server.config.memory.page_tokens
    adapter_bytes = server.layout.num_elements * DTYPE.itemsize
    row_pages = -(-(options.input + options.output + 1) // page_tokens)
    kv_pages = row_pages * options.max_seqs
    adapter_pages = -(-adapter_bytes // server.runner.page_bytes)
    server.begin_anew(1 + kv_pages + num_room * adapter_pages, kv_pages * page_tokens)
    server.warm(num_adapters)
    rng = np.random.default_rng(3)

    def requests(num: int) -> Iterator[Request]:
        for adapter in rng.integers(0, num_adapters, num).tolist():
            num_output = int(rng.integers(options.output // 2, options.output + 1))
            yield server.request(adapter, options.input, num_output)

    num_clients = CLIENTS_PER_ROW * options.max_seqs
    return server.serve(list(requests(num_clients)), following=requests(2 * options.requests))


def _rate(served: Served) -> float:
    return served.num_tokens / served.seconds


def _longest_wait_s(served: Served) -> float:
    """For a first token."""
    return max(first_s - served.due_s[name] for name, first_s in served.first_s.items())

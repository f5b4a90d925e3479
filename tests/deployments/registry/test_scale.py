"""What 100,000 adapters cost: a page of a listing, and the copy that an ingress keeps."""

from __future__ import annotations

import gc
import hashlib
import sys
import time
from types import FunctionType, ModuleType

import pytest

from deployments.ingress.directory import Directory
from deployments.registry import open_registry
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.alias import Alias
from deployments.registry.registry import Event
from deployments.registry.version_record import VersionRecord
from engine.types import AdapterRef

ALL_LINEAR = tuple(
    f"layers.*.{name}"
    for name in (
        "mlp.down_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "self_attn.k_proj",
        "self_attn.o_proj",
        "self_attn.q_proj",
        "self_attn.v_proj",
    )
)


def stored(number):
    """Key and value of one of many adapters, as publish writes it."""
    tenant, name = f"tenant-{number % 1000:04}", f"adapter-{number:06}"
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    ref = AdapterRef(
        tenant=tenant,
        name=name,
        digest=digest,
        base_revision="0e9e39f249a16976918f6564b8830bc894c89659",
        ranks=(16,),
        num_elements=41943040,
        num_bytes=83945744,
        uri=f"s3://adapters/adapters/{tenant}/{digest}",
    )
    version = VersionRecord(
        ref=ref,
        published_s=1.8e9 + number,
        by="lp-0123",
        base="meta-llama/Llama-3.1-8B-Instruct",
        asserted_by=None,
        modules=ALL_LINEAR,
        num_modules=224,
    )
    record = AdapterRecord(tenant, name, (version,), {"production": Alias(digest)})
    return record.key, record.to_value()


def held_bytes(root):
    """Of all objects that it keeps, each once, whatever else the process does meanwhile."""
    seen, waiting, num_bytes = {id(root)}, [root], 0
    while waiting:
        one = waiting.pop()
        num_bytes += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, (type, ModuleType, FunctionType)):
                seen.add(id(other))
                waiting.append(other)
    return num_bytes


def test_the_copy_takes_less_than_2000_bytes_an_adapter():
    number = 3_000
    directory = Directory()
    for n in range(number):
        key, value = stored(n)
        directory.apply(Event(key, value, n + 1))
    assert 500 < held_bytes(directory) / number < 2000
    directory.check()
    for n in (0, number - 1):
        key, value = stored(n)
        record = AdapterRecord.from_value(value)
        assert directory.adapter(record.tenant, record.name) == record


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_a_page_among_100_000_adapters(request, tmp_path, backend):
    number = 100_000
    if backend == "sqlite":
        registry = open_registry(f"sqlite://{tmp_path}/registry.db")
    else:
        server = request.getfixturevalue("redis_server")
        registry = open_registry(f"{server.url}?prefix=scale&timeout_s=10")
    try:
        in_order = sorted(range(number), key=lambda n: (n % 1000, n))
        registry.restore(stored(n) for n in in_order)
        keys = [f"adapter/tenant-{n % 1000:04}/adapter-{n:06}" for n in in_order]
        taken = []
        for start in range(0, number, number // 20):
            tries = []
            for _ in range(3):
                began = time.perf_counter()
                page = registry.list("adapter/", after=keys[start], limit=100)
                tries.append(time.perf_counter() - began)
            assert [e.key for e in page.entries] == keys[start + 1 : start + 101]
            taken.append(min(tries))  # the others may have waited for a processor
        assert max(taken) < 0.05, "wherever the page begins"
    finally:
        registry.restore([])
        registry.close()

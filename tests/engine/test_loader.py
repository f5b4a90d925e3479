"""Loads end in their slot, bit for bit, or in an error that says whose fault it is."""

from __future__ import annotations

import dataclasses
import mmap
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest
import torch

from engine.adapters.layout import AdapterLayout
from engine.adapters.store import MANIFEST, TENSORS, object_prefix
from engine.channel import Channel
from engine.config import AdapterConfig, EngineConfig, MemoryConfig, ModelConfig, StoreConfig
from engine.errors import AdapterUnavailable
from engine.loader import Loader, serve
from engine.messages import Load
from engine.receipts import Receipts, open_memory
from tests.support.peft_folders import lora_tensors, module_names, peft_config
from tests.support.published import make_keeping
from tests.support.remote_stores import GateStore, RemoteStore

GUARD = b"\xaa"
HOST_BYTES = 1 << 16


@pytest.fixture
def keeping(tmp_path):
    keeping = make_keeping(tmp_path)
    yield keeping
    keeping.registry.close()


def config(keeping, **model) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(keeping.root / "base"), **model),
        memory=MemoryConfig(arena_bytes=0, host_bytes=HOST_BYTES),
        store=StoreConfig(keeping.store.url, str(keeping.root / "disk"), disk_bytes=1 << 20),
        adapters=AdapterConfig(max_loads=2),
    )


@pytest.fixture
def host():
    return bytearray(GUARD * HOST_BYTES)


def order(ref, offset=4096, itemsize=4, load_id=7) -> Load:
    return Load(load_id, ref, offset, ref.num_elements * itemsize)


def loader(keeping, host, store=None, **model):
    ticks = iter(range(1000))
    return Loader(
        config(keeping, **model),
        memoryview(host),
        store or keeping.store,
        clock=lambda: float(next(ticks)),
    )


def untouched(host, load):
    end = load.host_offset + load.num_bytes
    return set(host[: load.host_offset]) | set(host[end:]) == set(GUARD)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_version_lands_in_its_slot_and_nowhere_else(keeping, host, dtype):
    tensors = lora_tensors(keeping.spec)
    ref = keeping.publish(tensors).ref
    load = order(ref, itemsize=4 if dtype == "float32" else 2)
    done = loader(keeping, host, dtype=dtype).load(load)
    assert (done.error, done.key, done.load_id) == (None, ref.key, 7)
    names = ["turn", "parse", "verify", "turn", "repack"]  # a second each, by the clock
    assert done.steps == tuple((name, i + 1.0, i + 2.0) for i, name in enumerate(names))
    assert done.seconds == done.steps[-1].end_s
    assert isinstance(done.layout, AdapterLayout) and not done.from_disk and not done.permanent
    assert done.layout.num_elements == ref.num_elements
    assert untouched(host, load)
    block = torch.frombuffer(host[4096 : 4096 + load.num_bytes], dtype=getattr(torch, dtype))
    for place in done.layout.blocks:
        module = keeping.spec.modules.modules[place.module]
        name = f"base_model.model.{module.name}.lora_A.weight"
        a = block[place.a : place.a + place.rank * module.in_features]
        assert torch.equal(a.view(place.rank, -1), tensors[name].to(a.dtype))
        assert place.scale == 2.0


def test_scales_are_those_of_the_publishing(keeping, host):
    """A-RSLORA on the path that repacks: patterns and rsLoRA were applied once, at publish."""
    names = module_names(keeping.spec)
    ranks = {n: 16 if ".1." in n else 4 for n in names}
    ref = keeping.publish(
        lora_tensors(keeping.spec, ranks),
        peft_config(
            use_rslora=True,
            rank_pattern={r"layers\.1\..*": 16},
            alpha_pattern={r"layers\.1\..*": 32},
        ),
    ).ref
    done = loader(keeping, host).load(order(ref))
    assert done.error is None
    table = keeping.spec.modules
    scales = {table.modules[b.module].name: b.scale for b in done.layout.blocks}
    assert scales == {n: 8.0 if ".1." in n else 4.0 for n in names}


def damage(path, position=-3):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.mark.parametrize("part", [TENSORS, MANIFEST])
def test_one_changed_bit_is_found(keeping, host, part):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    damage(keeping.store.local_path(f"{object_prefix('acme', ref.digest)}/{part}"))
    done = loader(keeping, host).load(order(ref))
    assert done.error.code == "adapter_corrupt" and done.error.status == 503
    assert not done.permanent and done.layout is None
    assert set(host) == set(GUARD)


def test_a_file_cut_short_is_corrupt(keeping, host):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    path = keeping.store.local_path(f"{object_prefix('acme', ref.digest)}/{TENSORS}")
    os.truncate(path, path.stat().st_size - 1)
    assert loader(keeping, host).load(order(ref)).error.code == "adapter_corrupt"


def test_another_version_s_object_is_not_taken_for_this_one(keeping, host):
    one = keeping.publish(lora_tensors(keeping.spec), name="one").ref
    two = keeping.publish(lora_tensors(keeping.spec), name="two").ref
    paths = [keeping.store.local_path(f"{object_prefix('acme', ref.digest)}") for ref in (one, two)]
    shutil.rmtree(paths[0])
    paths[1].rename(paths[0])
    assert loader(keeping, host).load(order(one)).error.code == "adapter_corrupt"


@pytest.mark.parametrize("part", [TENSORS, MANIFEST])
def test_an_absent_object_is_missing(keeping, host, part):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    keeping.store.delete(f"{object_prefix('acme', ref.digest)}/{part}")
    done = loader(keeping, host).load(order(ref))
    assert (done.error.code, done.error.status, done.permanent) == ("object_missing", 503, False)


def test_a_store_that_is_gone_is_unavailable(keeping, host):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    shutil.rmtree(keeping.root / "objects")
    done = loader(keeping, host).load(order(ref))
    assert (done.error.code, done.permanent) == ("store_unavailable", False)


def test_a_version_of_another_base_is_rejected_for_good(keeping, host):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    done = loader(keeping, host, revision="rev-2").load(order(ref))
    assert done.permanent and done.error.status == 422 and set(host) == set(GUARD)
    assert loader(keeping, host, revision="rev-1").load(order(ref)).error is None


def test_a_version_whose_size_is_not_its_record_s_is_rejected_for_good(keeping, host):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    for more in (-64, 64):
        wrong = dataclasses.replace(ref, num_elements=ref.num_elements + more)
        done = loader(keeping, host).load(order(wrong))
        assert done.permanent and "Publish it again" in done.error.message
    assert set(host) == set(GUARD)


@pytest.mark.parametrize("offset", [-4096, HOST_BYTES, HOST_BYTES - 2048])
def test_a_slot_outside_the_memory_is_never_written(keeping, host, offset):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    assert loader(keeping, host).load(order(ref, offset)).error is not None
    assert set(host) == set(GUARD)


@pytest.mark.parametrize(
    "change", [{"tenant": "../../x"}, {"digest": "../x"}, {"uri": "file:///etc"}]
)
def test_a_ref_leads_nowhere_but_below_its_tenant(keeping, host, change):
    """A-TRAVERSAL: the path comes from tenant and digest, never from the uri."""
    ref = dataclasses.replace(keeping.publish(lora_tensors(keeping.spec)).ref, **change)
    done = loader(keeping, host).load(order(ref))
    assert (done.error is None) == ("uri" in change)


# The disk tier ------------------------------------------------------------------------------------
def remote(keeping):
    return RemoteStore(keeping.root / "objects")


def test_a_remote_version_is_fetched_once(keeping, host):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    store = remote(keeping)
    loads = loader(keeping, host, store)
    done = [loads.load(order(ref)) for _ in range(3)]
    assert [d.from_disk for d in done] == [False, True, True]
    near = ["turn", "parse", "verify", "turn", "repack"]
    assert [[step.name for step in d.steps] for d in done] == [["fetch", *near], near, near]
    assert len(store.reads) == 2
    store.failing = AdapterUnavailable("down")
    assert loads.load(order(ref)).error is None


def test_a_retired_version_leaves_the_disk(keeping, host):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    loads = loader(keeping, host, remote(keeping))
    loads.load(order(ref))
    copy = keeping.root / "disk" / "versions" / "acme" / ref.digest
    assert copy.exists()
    loads.discard(ref)
    loads.discard(ref)
    assert not copy.exists()
    assert not loads.load(order(ref)).from_disk


@pytest.mark.parametrize("part", [TENSORS, MANIFEST])
def test_a_bad_copy_on_disk_is_fetched_again(keeping, host, part):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    store = remote(keeping)
    loads = loader(keeping, host, store)
    loads.load(order(ref))
    damage(keeping.root / "disk" / "versions" / "acme" / ref.digest / part)
    done = loads.load(order(ref))
    assert (done.error, done.from_disk) == (None, False)
    assert loads.load(order(ref)).from_disk


def test_a_bad_object_is_not_fetched_for_ever(keeping, host):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    damage(keeping.store.local_path(f"{object_prefix('acme', ref.digest)}/{TENSORS}"))
    store = remote(keeping)
    assert loader(keeping, host, store).load(order(ref)).error.code == "adapter_corrupt"
    assert len(store.reads) == 4


# C-S3-ERRORS
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (AdapterUnavailable("403", code="store_unavailable"), "store_unavailable"),
        (OSError(5, "Input/output error"), "adapter_unavailable"),
        (RuntimeError("bug"), "adapter_unavailable"),
    ],
)
def test_a_store_that_fails_is_ours_to_mend(keeping, host, failure, code):
    """C-S3-ERRORS."""
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    store = remote(keeping)
    store.failing = failure
    loads = loader(keeping, host, store)
    done = loads.load(order(ref))
    assert (done.error.status, done.error.code, done.permanent) == (503, code, False)
    store.failing = None
    assert loads.load(order(ref)).error is None


# Several at once ----------------------------------------------------------------------------------


def test_loads_run_together_and_no_more_than_allowed(keeping, host):
    """C-CONTROLLER-BLOCK: a bad one in front holds up nobody."""
    refs = [
        keeping.publish(
            lora_tensors(keeping.spec, names=module_names(keeping.spec)), name=f"n{n}"
        ).ref
        for n in range(4)
    ]
    keeping.store.delete(f"{object_prefix('acme', refs[0].digest)}/{TENSORS}")
    store = GateStore(keeping.root / "objects")
    ours, theirs = (Channel(s) for s in socket.socketpair())
    thread = threading.Thread(target=serve, args=(loader(keeping, host, store), theirs, 2))
    thread.start()
    for n, ref in enumerate(refs):
        ours.send(order(ref, offset=8192 * n, load_id=n))
    for _ in range(2):
        store.entered.acquire()
    store.gate.set()
    done = {}
    while len(done) < 4:
        ours.wait()
        done.update({d.load_id: d for d in ours.take()})
    assert done[0].error.code == "object_missing"
    assert [done[n].error for n in (1, 2, 3)] == [None] * 3
    assert store.most == 2
    ours.close()
    thread.join()
    theirs.close()


def test_the_process_answers_and_ends_with_its_parent(keeping):
    ref = keeping.publish(lora_tensors(keeping.spec)).ref
    memory = os.memfd_create("host")
    os.ftruncate(memory, HOST_BYTES)
    ours, theirs = socket.socketpair()
    alive, ours_alive = os.pipe()
    counted = open_memory()
    fds = (theirs.fileno(), memory, alive, counted)
    names = ("--fd", "--host-fd", "--liveness-fd", "--receipts-fd")
    flags = zip(names, map(str, fds), strict=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "engine.loader", *(word for pair in flags for word in pair)],
        pass_fds=fds,
    )
    theirs.close()
    os.close(alive)
    receipts = Receipts(counted)
    channel = Channel(ours)
    channel.send(config(keeping))
    channel.send(order(ref))
    assert channel.wait(60)
    (done,) = channel.take()
    assert done.error is None
    assert receipts.num_read == 2, "the config and the load"
    with mmap.mmap(memory, 0) as host:
        assert any(host[4096 : 4096 + ref.num_elements * 4])
        assert not any(host[:4096])
    channel.close()
    assert child.wait(30) == 0
    os.close(ours_alive)
    os.close(memory)

"""Engine and loader on a real S3 store that misbehaves: who is resident doesn't notice, who waits
gets its adapter or the cause (C-S3-ERRORS, C-CONTROLLER-BLOCK, B-COLD-STALL)."""

from __future__ import annotations

import dataclasses
import shutil
import time
from contextlib import ExitStack

import pytest
import torch

from engine.adapters.store import MANIFEST, TENSORS, object_prefix
from engine.messages import Load
from engine.types import FinishReason
from tests.support.fault_proxy import Fault
from tests.support.peft_folders import lora_tensors
from tests.support.published import make_keeping
from tests.support.s3_server import IMPATIENT, new_prefix
from tests.support.served_store import served

HASTY = dataclasses.replace(
    IMPATIENT, read_timeout_s=1.2, connect_timeout_s=1.2, max_attempts=3, deadline_s=12.0
)
PATIENT = dataclasses.replace(HASTY, read_timeout_s=10.0, connect_timeout_s=10.0, deadline_s=60.0)
"""Where requests are counted: none is made again because the machine is busy."""
LONG = 4000
LEAST_S, FEW_TOKENS = 0.2, 3
"""What a harmed answer takes at least, and so few tokens that any machine draws more meanwhile: a
hundred steps of the device fit in."""


@pytest.fixture(scope="module")
def published(s3, tmp_path_factory):
    """A base and adapters a0 .. a7, of which the server has the objects: (folder, prefix, refs)."""
    root, prefix = tmp_path_factory.mktemp("keeping"), new_prefix()
    torch.manual_seed(0)
    keeping = make_keeping(root)
    refs = [keeping.publish(lora_tensors(keeping.spec), name=f"a{n}").ref for n in range(8)]
    keeping.registry.close()
    store = s3.store(prefix)
    for ref in refs:
        for part in (TENSORS, MANIFEST):
            key = f"{object_prefix('acme', ref.digest)}/{part}"
            store.put(key, keeping.store.local_path(key))
    return root, prefix, refs


@pytest.fixture
def world(s3, proxy, published, tmp_path):
    root, prefix, _ = published
    store = s3.store(prefix, HASTY, endpoint=proxy.endpoint)
    with served(root / "base", tmp_path / "disk", store) as world:
        yield world


@pytest.fixture
def patient(s3, proxy, published, tmp_path):
    root, prefix, _ = published
    store = s3.store(prefix, PATIENT, endpoint=proxy.endpoint)
    with served(root / "base", tmp_path / "disk", store) as world:
        yield world


def visible(tmp_path):
    """Digests of the copies that anybody could find on the disk."""
    return {folder.name for folder in (tmp_path / "disk" / "versions").glob("*/*")}


PASSES = [
    ("slow", [(Fault(latency_s=0.1, bytes_per_s=1e6), None)]),
    ("cut", [(Fault(cut_after=700), 2)]),
    ("reset", [(Fault(cut_after=700, cut_by="rst"), 2)]),
    ("silent", [(Fault(silent_after=700), 1)]),
    ("slow down", [(Fault(answer=(503, "SlowDown")), 2)]),
    ("one wrong byte, once", [(Fault(flip=1500), 1)]),
]
LASTS = [
    (Fault(answer=(503, "SlowDown")), "store_slow_down", True),
    (Fault(answer=(500, "InternalError")), "store_failing", True),
    (Fault(cut_after=0), "store_cut", True),
    (Fault(black_hole=True), "store_timeout", True),
    (Fault(answer=(403, "AccessDenied")), "store_forbidden", False),
    (Fault(answer=(400, "ExpiredToken")), "store_credentials_expired", False),
    (Fault(answer=(301, "PermanentRedirect")), "store_wrong_region", False),
    (Fault(answer=(404, "NoSuchKey")), "object_missing", False),
    (Fault(flip=1500), "adapter_corrupt", False),
]


def go_on(world, proxy, refs, faults):
    """A resident adapter's long stream, then a cold one whose objects are harmed and, behind it,
    a cold one whose are not. All but the harmed one must be served."""
    world.submit("first", refs[0])
    world.run("first")
    stream = world.submit("stream", refs[0], LONG)
    for fault, times in faults:
        late = dataclasses.replace(fault, latency_s=max(fault.latency_s, LEAST_S))
        proxy.add(late, key=f"{refs[1].digest}/{TENSORS}", times=times)
    cold, neighbour = world.submit("cold", refs[1]), world.submit("neighbour", refs[2])
    before = len(stream.tokens)
    world.run("cold")
    again = world.submit("again", refs[1])
    assert stream.finish is None
    assert len(stream.tokens) > before + FEW_TOKENS, "it went on all the time"
    world.run("neighbour", "again")
    assert neighbour.finish is FinishReason.LENGTH
    assert (again.error is None) == (cold.error is None), "a failure is remembered"
    if cold.error is not None and again.error is not None:
        tells_when = [error.retry_after_s is not None for error in (cold.error, again.error)]
        assert tells_when[0] == tells_when[1], "and told alike to who waited and who comes later"
    world.engine.abort("stream")
    return cold


@pytest.mark.parametrize(("name", "faults"), PASSES, ids=[name for name, _ in PASSES])
def test_what_passes_is_waited_for(world, proxy, published, tmp_path, name, faults):
    refs = published[2]
    cold = go_on(world, proxy, refs, faults)
    assert (cold.finish, cold.error) == (FinishReason.LENGTH, None)
    assert visible(tmp_path) == {ref.digest for ref in refs[:3]}


@pytest.mark.parametrize(("fault", "code", "passes"), LASTS, ids=[code for _, code, _ in LASTS])
def test_what_lasts_is_an_error_that_says_which(
    world, proxy, published, tmp_path, fault, code, passes
):
    refs = published[2]
    cold = go_on(world, proxy, refs, [(fault, None)])
    error = cold.error
    assert (cold.finish, error.status, error.code) == (FinishReason.ERROR, 503, code)
    assert (error.retry_after_s is not None) == passes
    assert visible(tmp_path) == {refs[0].digest, refs[2].digest}, "nothing half-written"
    proxy.heal()
    world.run_for(1.1)
    late = world.submit("late", refs[1])
    world.run("late")
    assert late.finish is FinishReason.LENGTH, "mended without a restart"
    assert refs[1].digest in visible(tmp_path)


def test_200_requests_at_once_for_a_cold_adapter_are_one_get(patient, proxy, published):
    """And the first one's going cancels nobody's load."""
    ref = published[2][3]
    proxy.add(Fault(latency_s=0.1))
    for n in range(200):
        patient.submit(f"r{n}", ref)
        if n == 0:
            patient.step()
            patient.engine.abort("r0")
    patient.run()
    finishes = [answer.finish for answer in patient.answers.values()]
    assert finishes == [FinishReason.ABORT] + [FinishReason.LENGTH] * 199
    assert patient.num_loads == 1
    assert sorted(proxy.gets().values()) == [1, 1], "the manifest's and the tensors'"
    assert all(seen.method == "GET" for seen in proxy.seen)


def test_bad_adapters_in_front_hold_up_nobody(patient, proxy, published):
    """C-CONTROLLER-BLOCK: the first is refused for good, the second by the store."""
    refs = published[2]
    rejected = dataclasses.replace(refs[4], num_elements=refs[4].num_elements + 64)
    proxy.add(Fault(answer=(403, "AccessDenied")), key=refs[5].digest)
    began_s = time.monotonic()
    order = {"rejected": rejected, "forbidden": refs[5], "good1": refs[6], "good2": refs[7]}
    for _ in range(5):
        for name, ref in order.items():
            patient.submit(name, ref)
        patient.run()
        assert patient.answers["rejected"].error.status == 422
        assert patient.answers["forbidden"].error.code == "store_forbidden"
        assert patient.answers["good1"].finish is FinishReason.LENGTH
        assert patient.answers["good2"].finish is FinishReason.LENGTH
        patient.run_for(0.1)
    assert proxy.num_gets(rejected.digest) == 2, "what is refused for good is not fetched again"
    most = 2 + (time.monotonic() - began_s) / patient.config.adapters.failure_ttl_s
    assert proxy.num_gets(refs[5].digest) <= most, "what the store refuses is not asked for anew"


def test_a_cut_fetch_goes_on_after_the_loader_was_started_anew(s3, proxy, published, tmp_path):
    root, prefix, refs = published
    store = s3.store(prefix, PATIENT, endpoint=proxy.endpoint)
    key = f"{refs[1].digest}/{TENSORS}"
    proxy.add(Fault(cut_after=1000), key=key, times=1)
    proxy.add(Fault(cut_after=0), key=key)
    with served(root / "base", tmp_path / "disk", store) as world:
        answer = world.submit("r", refs[1])
        world.run()
        assert answer.error.code == "store_cut" and visible(tmp_path) == set()
    proxy.heal()
    proxy.seen.clear()
    with served(root / "base", tmp_path / "disk", store) as world:
        answer = world.submit("r", refs[1])
        world.run()
        assert answer.finish is FinishReason.LENGTH
    (seen,) = [s for s in proxy.seen if key in s.path]
    assert (seen.range, seen.status) == ("bytes=1000-", 206) and seen.if_match
    assert seen.num_bytes == refs[1].num_bytes - 1000


def test_what_is_on_the_disk_outlives_the_loader_and_a_bad_copy_is_fetched_again(
    s3, proxy, published, tmp_path
):
    root, prefix, refs = published
    store = s3.store(prefix, PATIENT, endpoint=proxy.endpoint)
    blocks = []
    for turn in range(3):
        with ExitStack() as stack:
            world = stack.enter_context(served(root / "base", tmp_path / "disk", store))
            done = world.loader.load(Load(0, refs[1], 0, refs[1].num_elements * 4))
            assert done.error is None
            assert done.from_disk == (turn == 1)
            blocks.append(bytes(world.host[: refs[1].num_elements * 4]))
        if turn == 1:
            (copy,) = (tmp_path / "disk" / "versions").glob(f"*/*/{TENSORS}")
            data = bytearray(copy.read_bytes())
            data[-3] ^= 1
            copy.write_bytes(data)
    assert blocks[0] == blocks[1] == blocks[2] and any(blocks[0])
    assert proxy.num_gets(TENSORS) == 2
    shutil.rmtree(tmp_path / "disk")

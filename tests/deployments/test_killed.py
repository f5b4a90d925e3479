"""SIGKILL at every step of publish, promote, roll back, retire and sweep: registry and store fit
together afterwards, and doing it again succeeds."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import pytest
import torch

from deployments.changes.placing import Placing
from deployments.control.publish_order import Source, upload_prefix
from deployments.registry.adapter_record import AdapterRecord
from engine.adapters.digest import digest
from engine.adapters.store import CONFIG, MANIFEST, TENSORS, object_prefix
from tests.support.killing import KillingRegistry, KillingStore, killed
from tests.support.peft_folders import lora_tensors, write_adapter
from tests.support.published import GRACE_S, Keeping, make_keeping

pytestmark = pytest.mark.slow
MAX_STEPS = 200


@dataclass
class Before:
    """A tenant's adapter with two versions; the files of a third, as a folder and an upload."""

    root: object
    one: str
    two: str
    third: str


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("before") / "home"
    root.mkdir()
    keeping = make_keeping(root, keep_versions=1)
    digests = [keeping.publish(lora_tensors(keeping.spec)).current for _ in range(2)]
    write_adapter(keeping.imports / "third", lora_tensors(keeping.spec))
    put_upload(keeping)
    third = keeping.publish_folder("third", tenant="beta").current
    keeping.registry.close()
    return Before(root, *digests, third)


def put_upload(keeping):
    for name in (CONFIG, TENSORS):
        path = keeping.imports / "third" / name
        keeping.store.put(f"{upload_prefix('acme', '100-up')}/{name}", path)


def publish(keeping, before):
    assert keeping.publish_folder("third").current == before.third


def upload(keeping, before):
    assert keeping.publish_from(Source(upload="100-up")).current == before.third


def first(keeping, before):
    assert keeping.publish_folder("third", name="fresh").current == before.third


def canary(keeping, before):
    keeping.publish_folder("third", placing=Placing("canary", 0.05))


def promote(keeping, before):
    assert keeping.adapters.promote("acme", "bot", before.one, Placing()).current == before.one


def roll_back(keeping, before):
    if keeping.record().current == before.two:
        keeping.adapters.roll_back("acme", "bot", expect=before.two)


def retire(keeping, before):
    assert keeping.adapters.retire("acme", "bot", "me").status == "retired"


def retire_version(keeping, before):
    keeping.adapters.retire("acme", "bot", "me", before.one)


def sweep(keeping, before):
    keeping.adapters.retire("acme", "bot", "me", before.one)
    keeping.now[0] += 2 * GRACE_S
    keeping.sweep.run()


@pytest.mark.parametrize(
    "operation",
    [publish, upload, first, canary, promote, roll_back, retire, retire_version, sweep],
    ids=lambda f: f.__name__,
)
def test_killed_at_every_step(before, tmp_path, operation):
    for step in range(MAX_STEPS):
        root = tmp_path / f"killed-{step}"
        shutil.copytree(before.root, root)

        def work(steps, root=root):
            keeping = make_keeping(
                root,
                keep_versions=1,
                wrap_store=lambda store: KillingStore(store, root / "objects", steps),
                wrap_registry=lambda registry: KillingRegistry(registry, steps),
            )
            operation(keeping, before)

        died = killed(work, step)
        keeping = make_keeping(root, keep_versions=1)
        check_consistent(keeping)
        bot = keeping.record()
        assert bot.current in (before.one, before.two, before.third, None)
        if operation is upload:  # what is left of it is for the sweep; the client uploads again
            put_upload(keeping)
        operation(keeping, before)
        check_consistent(keeping)
        check_swept_clean(keeping)
        keeping.registry.close()
        shutil.rmtree(root)
        if not died:
            assert step > 2
            return
    raise AssertionError("it never ended")


def check_consistent(keeping: Keeping) -> None:
    """Every version that a name can mean is whole in the store, byte for byte."""
    keeping.registry.check()
    for entry in keeping.registry.list("adapter/").entries:
        record = AdapterRecord.from_value(entry.value)
        record.check()
        for version in record.versions:
            if version.live:
                ref = version.ref
                prefix = object_prefix(ref.tenant, ref.digest)
                manifest = b"".join(keeping.store.read(f"{prefix}/{MANIFEST}"))
                assert digest(manifest) == ref.digest
                assert keeping.store.size(f"{prefix}/{TENSORS}") == ref.num_bytes
                assert keeping.store.size(f"{prefix}/{CONFIG}") is not None


def check_swept_clean(keeping: Keeping) -> None:
    """A sweep later the store has the live versions' objects and nothing else."""
    for path in (keeping.root / "objects").rglob("*"):
        os.utime(path, (0, 0))
    keeping.now[0] += 10 * GRACE_S
    keeping.sweep.run()
    records = [AdapterRecord.from_value(e.value) for e in keeping.registry.list("adapter/").entries]
    live = {object_prefix(r.tenant, v.ref.digest) for r in records for v in r.versions if v.live}
    assert {"/".join(key.split("/")[:3]) for key in keeping.store.list("")} == live
    check_consistent(keeping)

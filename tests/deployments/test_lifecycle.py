"""An adapter's whole life over REST with the real control, in one process: upload to sweep."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import pytest

from deployments.changes.placing import Placing
from deployments.control.control import Control
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.version_record import VersionRecord
from deployments.rest.answers import error_of as raised
from engine.adapters.store import CONFIG, TENSORS
from engine.model.spec import BackboneSpec
from tests.support.ingress import InProcess, World, bearer, error_of
from tests.support.memory_control import REVISION
from tests.support.peft_folders import BASE_NAME, lora_tensors, peft_config, write_adapter


class DirectControl:
    """`adapter_routes.Control` over a control of this process, as a handle's answers are read."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def stage(self, order):
        return VersionRecord.from_value(_good(await self._control.stage(asdict(order))))

    async def register(self, version, placing: Placing):
        answer = await self._control.register(version.to_value(), asdict(placing))
        return AdapterRecord.from_value(_good(answer))

    async def observe(self, report):
        return _good(await self._control.observe(report))

    async def trial(self, model):
        return _good(await self._control.trial(model))["trial"]

    async def sweep(self, dry_run):
        return _good(await self._control.sweep(dry_run))


def _good(answer):
    json.dumps(answer)  # plain values alone cross to another process
    if "error" in answer:
        raise raised(answer["error"])
    return answer


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def world(tmp_path, clock):
    base = {
        "path": str(tmp_path / "model"),
        "name": "org/tiny",
        "revision": REVISION,
        "accepts": [BASE_NAME],
    }
    (tmp_path / "import").mkdir()
    imports = (tmp_path / "imports").as_uri()
    world = World.build(
        tmp_path,
        base=base,
        import_root=str(tmp_path / "import"),
        publish={"import_store": imports, "keep_versions": 1},
        replica={"dtype": "float32", "memory": {"arena_bytes": 1 << 22, "host_bytes": 1 << 22}},
    )
    control = Control(world.config, clock=lambda: clock[0])
    world.control = DirectControl(control)
    yield world
    control.close()
    world.registry.close()


@pytest.fixture
async def admin(world):
    async with InProcess(world) as client:
        client.headers.update(bearer(world.keys["admin"]))
        yield client


@pytest.fixture
def folder(world, tmp_path):
    """Writes a new random adapter each time."""

    def write(name="made", **config):
        spec = BackboneSpec.load(world.config.base.path)
        return write_adapter(tmp_path / name, lora_tensors(spec), peft_config(**config))

    return write


async def upload(client, folder, **form):
    files = {name: (name, (folder / name).read_bytes()) for name in (CONFIG, TENSORS)}
    form = {"tenant": "t1", "name": "up", **form}
    return await client.post("/v1/adapters", data=form, files=files)


async def answering(client, world, model="t1/up"):
    body = {"model": model, "prompt": "x"}
    answer = await client.post("/v1/completions", json=body, headers=bearer(world.keys["t1"]))
    return answer.headers.get("x-loraplex-adapter-version") or answer.status_code


async def test_from_upload_to_sweep(admin, world, folder, clock):
    probes = json.dumps([{"prompt": "hi", "expect": "one"}])
    first = (await upload(admin, folder(), probes=probes)).json()
    assert first["status"] == "published" and first["versions"][0]["probes"][0]["answer"]
    assert await answering(admin, world) == first["version"]
    assert world.store.list("uploads/") == []
    canary = (await upload(admin, folder(), **{"as": "canary", "weight": "0"})).json()
    async with asyncio.timeout(60):
        while await answering(admin, world, "up@canary") != canary["version"]:
            await asyncio.sleep(0.02)
    assert await answering(admin, world) == first["version"]
    promoted = await admin.post("/v1/adapters/t1/up/promote", json={"version": "canary"})
    assert promoted.json()["digest"] == canary["version"]
    async with asyncio.timeout(60):
        while await answering(admin, world) != canary["version"]:
            await asyncio.sleep(0.02)
    await admin.delete("/v1/adapters/t1/up")
    clock[0] = 1e10  # the ingress retires by the real clock
    report = (await admin.post("/v1/store/sweep", json={})).json()
    assert sorted(r["prefix"] for r in report["removed"]) == sorted(
        f"adapters/t1/{d}" for d in (first["version"], canary["version"])
    )
    assert world.store.list("") == []


async def test_an_import_store_s_prefix(admin, world, folder, tmp_path):
    target = tmp_path / "imports" / "imports" / "t1" / "run-7"
    target.parent.mkdir(parents=True)
    folder().rename(target)
    body = {"tenant": "t1", "name": "up", "prefix": "run-7"}
    assert (await admin.post("/v1/adapters", json=body)).status_code == 201
    for tenant, prefix in (("t2", "run-7"), ("t2", "imports/t1/run-7"), ("t2", "../t1/run-7")):
        answer = await admin.post(
            "/v1/adapters", json={"tenant": tenant, "name": "up", "prefix": prefix}
        )
        assert answer.status_code in (400, 404)


# C-CONTROLLER-BLOCK
async def test_bad_uploads_hold_up_no_good_one(admin, world, folder):
    """C-CONTROLLER-BLOCK."""
    bad = folder("bad", r=8)
    good = [folder(f"good{n}") for n in range(2)]
    calls = [upload(admin, bad, name="bad")]
    calls += [upload(admin, f, name=f"good{n}") for n, f in enumerate(good)]
    refused, *published = await asyncio.gather(*calls)
    error_of(refused, 422)
    assert [p.status_code for p in published] == [201, 201]
    assert world.store.list("uploads/") == []
    error_of(await admin.get("/v1/adapters/t1/bad"), 404)


async def test_refusals_keep_their_words_across_the_handle(admin, folder):
    error = error_of(await upload(admin, folder(), base="other"), 400)
    assert error["param"] in ("base", None) and "org/tiny" in error["message"]
    error = error_of(await upload(admin, folder("x", use_dora=True)), 422)
    assert "DoRA" in error["message"] or "use_dora" in error["message"]
    error_of(await upload(admin, folder(), tenant="t9"), 404)
    error_of(await upload(admin, folder(), name="UP"), 400)

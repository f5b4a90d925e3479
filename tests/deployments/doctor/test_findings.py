"""What `loraplex doctor` makes of facts: every failure and warning, each with a remedy."""

from __future__ import annotations

import pytest
from safetensors.torch import save_file

from deployments.config import load
from deployments.doctor import machine
from deployments.doctor.backends import (
    RedisFacts,
    RegistryFacts,
    StoreFacts,
    check_redis,
    check_registry,
    check_store,
)
from deployments.doctor.findings import Level, failure, ok, warning, worst
from deployments.doctor.machine import Folder, Gpu, GpuFacts, Limits, Need, Package, RayFacts
from deployments.doctor.model import check_model, look_at_model
from deployments.platform.ray_settings import RAY_SETTINGS
from deployments.registry.schema import SCHEMA
from tests.support.ingress import write_model
from tests.support.tiny_models import make_model

GIB = 1 << 30
OK, WARNING, FAILURE = Level.OK, Level.WARNING, Level.FAILURE
H200 = Gpu("H200", 139 * GIB, 138 * GIB, (9, 0))


def level(findings):
    """The worst; the invariants of each are checked."""
    findings = findings if isinstance(findings, list) else [findings]
    for finding in findings:
        finding.check()
    return worst(findings)


def told(findings):
    """What is wrong, and what to do, in one text."""
    assert level(findings) is not OK
    return "\n".join(f"{f.subject}: {f.said} -> {f.remedy}" for f in findings if f.remedy)


def test_the_worst_counts():
    bad, odd = failure("a", "b", "c"), warning("a", "b", "c")
    assert worst([ok("a", "b"), odd, bad]) is FAILURE
    assert worst([odd, ok("a", "b")]) is WARNING
    assert worst([]) is OK


@pytest.mark.parametrize(
    "found, wanted", [((3, 10, 14), FAILURE), ((3, 11, 0), OK), ((3, 13, 2), OK)]
)
def test_python(found, wanted):
    assert level(machine.check_python(found)) is wanted


@pytest.mark.parametrize(
    "version, spec, fits",
    [
        ("2.13.0+cpu", ">=2.11,<2.14", True),
        ("2.11", ">=2.11,<2.14", True),
        ("2.14.0", ">=2.11,<2.14", False),
        ("2.9.1", ">=2.11,<2.14", False),
        ("2.60.0", ">=2.60,<2.61", True),
        ("46", ">=45", True),
        ("1.2rc1", "", True),
    ],
)
def test_versions_are_numbers(version, spec, fits):
    assert machine.fits(version, spec) == fits


def test_packages():
    good = [Package("torch", ">=2.11,<2.14", "2.13.0"), Package("numpy", ">=1.26", "2.1")]
    assert [f.said for f in machine.check_packages(good)] == ["2.13.0", "1 more fit"]
    for found in ("2.10.1", None):
        said = told(machine.check_packages([Package("torch", ">=2.11,<2.14", found)]))
        assert "pip install 'torch>=2.11,<2.14'" in said


GPU_CASES = {
    "no GPU": ("cuda", GpuFacts(), FAILURE, "replica.device: cpu"),
    "none, and none asked for": ("auto", GpuFacts(), OK, ""),
    "cpu": ("cpu", GpuFacts("13.0", True, "580.1", (H200,)), OK, ""),
    "torch for the CPU": ("cuda", GpuFacts("", False, "580.1", (H200,)), FAILURE, "TORCH_INDEX"),
    "the same, auto": ("auto", GpuFacts("", False, "580.1", (H200,)), WARNING, "TORCH_INDEX"),
    "old driver": ("cuda", GpuFacts("13.0", False, "550.54", (H200,)), FAILURE, "driver 580"),
    "its torch": ("cuda", GpuFacts("12.8", True, "550.54", (H200,)), OK, ""),
    "not passed in": ("cuda", GpuFacts("13.0", False, "580.1", (H200,)), FAILURE, "--gpus all"),
    "old GPU": (
        "cuda",
        GpuFacts("12.8", True, "580.1", (Gpu("T4", 15 * GIB, 15 * GIB, (7, 5)),)),
        FAILURE,
        "Ampere",
    ),
    "good": ("cuda", GpuFacts("13.0", True, "580.1", (H200,)), OK, ""),
}


@pytest.mark.parametrize("case", GPU_CASES)
def test_gpus(case):
    device, facts, wanted, remedy = GPU_CASES[case]
    found = machine.check_gpu(device, facts)
    assert level(found) is wanted
    assert wanted is OK or remedy in told(found)


@pytest.mark.parametrize(
    "total, free, arena, wanted, words",
    [
        (139, 138, None, OK, ""),
        (16, 15.5, None, FAILURE, "max_model_len"),
        (24, 10, None, FAILURE, "nvidia-smi"),
        (24, 23.5, 12 * GIB, FAILURE, "arena_bytes"),
        (139, 100, None, WARNING, "what is left"),
    ],
)
def test_gpu_memory_against_model_and_arena(total, free, arena, wanted, words):
    need = Need(weights=15 * GIB, reserve=GIB, arena=arena, host=GIB, replicas=1)
    gpu = Gpu("x", int(total * GIB), int(free * GIB), (9, 0))
    found = machine.check_gpu_memory([gpu], need)
    assert level(found) is wanted
    assert wanted is OK or words in told(found)


def test_memory_of_replicas_on_the_cpu():
    need = Need(weights=GIB, reserve=0, arena=GIB, host=GIB, replicas=2)
    assert level(machine.check_memory(Limits(7 * GIB, (1, 1), None), need)) is OK
    assert "Fewer replicas" in told([machine.check_memory(Limits(6 * GIB, (1, 1), None), need)])


@pytest.mark.parametrize(
    "files, shm, wanted",
    [
        ((65_536, 65_536), 2 * GIB, OK),
        ((1024, 65_536), 2 * GIB, WARNING),
        ((1024, 4096), 2 * GIB, FAILURE),
        ((65_536, 65_536), 64 << 20, WARNING),
        ((65_536, 65_536), None, WARNING),
    ],
)
def test_limits(files, shm, wanted):
    found = machine.check_limits(Limits(GIB, files, shm), max_in_flight=2048)
    assert level(found) is wanted
    assert wanted is OK or "ulimit -n" in told(found) or "--shm-size" in told(found)


def test_ports():
    assert level(machine.check_port(8000, "")) is OK
    assert level(machine.check_port(8000, "loraplex")) is OK
    said = told([machine.check_port(8000, "Address already in use")])
    assert "port 8000: taken (Address already in use)" in said and "http_options.port" in said


@pytest.mark.parametrize(
    "folder, wanted",
    [
        (Folder("/d", "", 8 * GIB, 0), OK),
        (Folder("/d", "", 2 * GIB, 2 * GIB), OK),
        (Folder("/d", "", 2 * GIB, 1 * GIB), WARNING),
        (Folder("/d", "", 1000, 0), FAILURE),
        (Folder("/d", "/d can't be written"), FAILURE),
    ],
)
def test_the_disk_tier(folder, wanted):
    assert level(machine.check_disk(folder, 4 * GIB)) is wanted


def test_the_import_root():
    assert level(machine.check_import_root(None)) is OK
    assert level(machine.check_import_root(Folder("/i"))) is OK
    assert "import_root" in told([machine.check_import_root(Folder("/i", "/i is no folder"))])


def config(registry="redis://h", store="s3://bucket", **replica):
    base = {"path": "/m", "name": "tiny"}
    values = {"data_dir": "/d", "base": base, "registry": registry, "store": store}
    return load({**values, "replica": replica}, environ={})


def test_ray():
    check = machine.check_ray
    assert level(check(RayFacts(), config())) is OK
    assert level(check(RayFacts(True, "", 3, 8), config(device="cuda", num_replicas=8))) is OK
    assert "mend the address" in told(check(RayFacts(True, "no answer"), config()))
    said = told(check(RayFacts(True, "", 3, 8), config("sqlite:///r.db")))
    assert "3 nodes" in said and "redis://" in said
    few = check(RayFacts(True, "", 3, 1), config(device="cuda", num_replicas=2))
    assert level(few) is WARNING and "2 GPUs; there are 1" in told(few)


def test_settings_of_ray():
    assert level(machine.check_ray_settings(RAY_SETTINGS, RAY_SETTINGS)) is OK
    wrong = {**RAY_SETTINGS, "RAY_SERVE_PROXY_USE_GRPC": "0"}
    found = machine.check_ray_settings(RAY_SETTINGS, wrong)
    assert found.level is WARNING
    assert found.remedy.endswith("export RAY_SERVE_PROXY_USE_GRPC=1")


# The model ----------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    made = make_model(tmp_path, "llama").folder
    tokens = write_model(tmp_path / "tokens", num_tokens=384)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).write_bytes((tokens / name).read_bytes())
    return made


def test_a_whole_model(folder):
    (finding,) = check_model(look_at_model(folder))
    assert finding.level is OK


def harmed(folder, how):
    weights = folder / "model.safetensors"
    match how:
        case "no config":
            (folder / "config.json").unlink()
        case "no weights":
            weights.unlink()
        case "cut short":
            weights.write_bytes(weights.read_bytes()[:-5])
        case "git lfs":
            weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
        case "half of it":
            save_file({}, weights)
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "odd tokenizer":
            (folder / "tokenizer.json").write_text("{")
        case "no template":
            (folder / "tokenizer_config.json").write_text("{}")


@pytest.mark.parametrize(
    "how, wanted, words",
    [
        ("no config", FAILURE, "base.path"),
        ("no weights", FAILURE, "model.safetensors is missing"),
        ("cut short", FAILURE, "its header describes"),
        ("git lfs", FAILURE, "git lfs pull"),
        ("half of it", FAILURE, "tensors are in no file"),
        ("no tokenizer", FAILURE, "tokenizer.json"),
        ("odd tokenizer", FAILURE, "tokenizer.json can't be read"),
        ("no template", WARNING, "/v1/completions"),
    ],
)
def test_what_a_model_lacks(folder, how, wanted, words):
    harmed(folder, how)
    found = check_model(look_at_model(folder))
    assert level(found) is wanted
    assert words in told(found)


# Registry and store -------------------------------------------------------------------------------
SAFE = {"num_replicas": 1, "append_only": True}


@pytest.mark.parametrize(
    "changes, wanted, words",
    [
        ({}, OK, ""),
        ({"version": "6.2.14"}, FAILURE, "Redis 7.0"),
        ({"policy": "allkeys-lru"}, FAILURE, "noeviction"),
        ({"policy": "volatile-lru"}, OK, ""),
        ({"role": "slave"}, FAILURE, "Name the master"),
        ({"num_replicas": 0}, WARNING, "appendfsync always"),
        ({"wanted_replicas": 2}, FAILURE, "1 online, 2 asked for"),
        ({"append_only": False}, WARNING, "appendonly yes"),
        ({"append_works": False}, FAILURE, "Make room on its disk"),
        ({"snapshots": False}, FAILURE, "Make room on its disk"),
        ({"max_bytes": 100, "used_bytes": 81}, WARNING, "Raise maxmemory"),
        ({"max_bytes": 100, "used_bytes": 79}, OK, ""),
    ],
)
def test_redis(changes, wanted, words):
    found = check_redis(RedisFacts(**{"version": "7.0.15", **SAFE, **changes}))
    assert level(found) is wanted
    assert wanted is OK or words in told(found)


@pytest.mark.parametrize(
    "changes, wanted, words",
    [
        ({}, OK, ""),
        ({"schema": None}, OK, ""),
        ({"problem": "It can't be used: no. Check the file."}, FAILURE, "Check the file."),
        ({"schema": SCHEMA.version + 1}, FAILURE, "Start the release that wrote it"),
        ({"schema": SCHEMA.oldest}, WARNING, "registry backup"),
        ({"write_problem": "It is full. Make room."}, FAILURE, "registry writes"),
        ({"num_admin_keys": 0}, FAILURE, "loraplex bootstrap"),
        ({"key_is_good": False}, WARNING, "LORAPLEX_ADMIN_KEY"),
        ({"key_is_good": True}, OK, ""),
    ],
)
def test_the_registry_and_its_admin_key(changes, wanted, words):
    facts = {"where": "here", "schema": SCHEMA.version, "num_admin_keys": 2, **changes}
    found = check_registry(RegistryFacts(**facts))
    assert level(found) is wanted
    assert wanted is OK or words in told(found)


@pytest.mark.parametrize(
    "changes, wanted, words",
    [
        ({}, OK, ""),
        ({"open_problem": "No region. Name one."}, FAILURE, "store: No region. -> Name one."),
        ({"put_problem": "access was refused. Allow it."}, FAILURE, "store put"),
        ({"get_problem": "access was refused. Allow it."}, FAILURE, "store get"),
        ({"list_problem": "access was refused. Allow it."}, FAILURE, "store list"),
        ({"delete_problem": "access was refused. Allow it."}, FAILURE, "store delete"),
        ({"skew_s": 3.0}, OK, ""),
        ({"skew_s": -90.0}, WARNING, "NTP"),
        ({"skew_s": 901.0}, FAILURE, "it refuses such requests"),
    ],
)
def test_the_store(changes, wanted, words):
    found = check_store(StoreFacts("s3://bucket", **changes))
    assert level(found) is wanted
    assert wanted is OK or words in told(found)

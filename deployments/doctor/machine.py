"""Checks of a machine: versions, GPUs, memory, limits, ports, folders, Ray. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deployments.config import AppConfig
from deployments.config_file import ConfigError
from deployments.doctor.findings import Finding, failure, gib, ok, warning
from deployments.platform.hosts import check_hosts

OLDEST_PYTHON = (3, 11)
NAMED = ("torch", "triton", "ray")
"""Packages that have a line of their own; of the others only what doesn't fit is told."""
OLDEST_DRIVER = {12: 525, 13: 580}
"""By the major version of the CUDA that torch is built for."""
OLDEST_CAPABILITY = (8, 0)
WORKSPACE_BYTES = 1 << 30
"""What a replica needs of a GPU beside weights and arena, roughly: context, graphs, workspaces."""
PROCESS_BYTES = 512 << 20
"""What a replica's three processes need beside that, on the CPU."""
ENOUGH_FILES = 65_536
ENOUGH_SHM = 1 << 30
LEAST_DISK = 1 << 30


@dataclass(frozen=True, slots=True)
class Package:
    """spec: as in pyproject.toml, ">=2.11,<2.14". found: None where it isn't installed."""

    name: str
    spec: str
    found: str | None


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """torch_cuda: what torch is built for; "" for none. usable: torch can use one."""

    torch_cuda: str = ""
    usable: bool = False
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one replica.

    reserve   the arena's least: the KV of one longest sequence, and a page
    arena     None: a GPU's finds itself
    replicas  on this machine at most
    """

    weights: int
    reserve: int
    arena: int | None
    host: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Limits:
    """open_files: (soft, hard). shm_bytes: of /dev/shm; None where there is none."""

    memory_bytes: int
    open_files: tuple[int, int]
    shm_bytes: int | None


@dataclass(frozen=True, slots=True)
class Folder:
    """problem: why it can't be used. used_bytes: of its files."""

    path: str
    problem: str = ""
    free_bytes: int = 0
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RayFacts:
    """asked: an address was given. problem: why it doesn't answer."""

    asked: bool = False
    problem: str = ""
    num_nodes: int = 0
    num_gpus: float = 0.0


def check_python(found: tuple[int, ...]) -> Finding:
    said = ".".join(map(str, found))
    if found[:2] >= OLDEST_PYTHON:
        return ok("python", said)
    return failure("python", said, "Make the environment with Python 3.11 or newer.")


def check_packages(packages: Iterable[Package]) -> list[Finding]:
    findings, others = [], 0
    for p in packages:
        if p.found is None or not fits(p.found, p.spec):
            said = f"{p.found or 'not installed'}; this release needs {p.spec}"
            remedy = f"pip install '{p.name}{p.spec}', or make the environment anew: make env."
            findings.append(failure(p.name, said, remedy))
        elif p.name in NAMED:
            findings.append(ok(p.name, p.found))
        else:
            others += 1
    return [*findings, ok("packages", f"{others} more fit")]


def fits(version: str, spec: str) -> bool:
    """Whether a version lies in ">=2.11,<2.14": of numbers, whatever follows them."""
    for bound in filter(None, spec.split(",")):
        operator, wanted = bound[: -len(bound.lstrip("<>=!~"))], bound.lstrip("<>=!~")
        found, limit = _numbers(version), _numbers(wanted)
        if (operator == ">=" and found < limit) or (operator == "<" and found >= limit):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    parts = re.match(r"\d+(\.\d+)*", version.strip())
    numbers = [int(n) for n in parts[0].split(".")] if parts else []
    return tuple(numbers + [0] * (4 - len(numbers)))


def check_gpu(device: str, facts: GpuFacts) -> list[Finding]:
    """device: as the configuration has it."""
    if device not in ("cuda", "auto"):
        return [ok("gpu", f"not used (replica.device is {device})")]
    if not facts.gpus:
        if device == "auto":
            return [ok("gpu", "none here: replicas run on the CPU")]
        return [failure("gpu", "no NVIDIA GPU here", "See nvidia-smi; or set replica.device: cpu.")]
    if not facts.torch_cuda:
        remedy = "Install a build of torch with CUDA; TORCH_INDEX names an index of them."
        level = failure if device == "cuda" else warning
        return [level("gpu", f"{facts.gpus[0].name}, but torch is built without CUDA", remedy)]
    findings = [_driver(facts)]
    for number, gpu in enumerate(facts.gpus):
        major, minor = gpu.capability
        said = f"{number}: {gpu.name}, {gib(gpu.total_bytes)}, capability {major}.{minor}"
        if gpu.capability < OLDEST_CAPABILITY:
            remedy = "Use Ampere (8.0) or newer, or CUDA_VISIBLE_DEVICES without it."
            findings.append(failure("gpu", said, remedy))
        else:
            findings.append(ok("gpu", said))
    return findings


def _driver(facts: GpuFacts) -> Finding:
    said = f"{facts.driver or 'none'}, torch for CUDA {facts.torch_cuda}"
    oldest = OLDEST_DRIVER.get(_numbers(facts.torch_cuda)[0], 0)
    if _numbers(facts.driver)[0] < oldest:
        remedy = f"Install driver {oldest} or newer, or a torch for an older CUDA (TORCH_INDEX)."
        return failure("driver", said, remedy)
    if not facts.usable:
        remedy = "Run nvidia-smi; in a container, give it the GPUs (--gpus all)."
        return failure("driver", f"{said}: torch can't use a GPU", remedy)
    return ok("driver", said)


def check_gpu_memory(gpus: Iterable[Gpu], need: Need) -> list[Finding]:
    findings = []
    for number, gpu in enumerate(gpus):
        subject = f"gpu {number} memory"
        least = need.weights + need.reserve + WORKSPACE_BYTES
        wanted = need.weights + (need.arena or 0) + WORKSPACE_BYTES
        has = f"{gib(gpu.total_bytes)}, {gib(gpu.free_bytes)} free"
        if least > gpu.total_bytes:
            said = f"{has}; weights, workspaces and one longest sequence need {gib(least)}"
            remedy = "A larger GPU or a smaller model, or a smaller replica.max_model_len."
            findings.append(failure(subject, said, remedy))
        elif max(least, wanted) > gpu.free_bytes:
            said = f"{has}; a replica needs {gib(max(least, wanted))}"
            remedy = "End what holds it (nvidia-smi), or lower replica.memory.arena_bytes."
            findings.append(failure(subject, said, remedy))
        elif gpu.free_bytes < 0.9 * gpu.total_bytes:
            remedy = "If that is not this service, end it: the arena gets what is left."
            findings.append(warning(subject, has, remedy))
        else:
            findings.append(ok(subject, f"{has}; at least {gib(least)} needed"))
    return findings


def check_memory(limits: Limits, need: Need) -> Finding:
    """Of replicas on the CPU."""
    each = need.weights + (need.arena or 0) + need.host + PROCESS_BYTES
    said = f"{gib(limits.memory_bytes)}; {need.replicas} replicas need {gib(each)} each"
    if each * need.replicas <= limits.memory_bytes:
        return ok("memory", said)
    remedy = "Fewer replicas, or a smaller replica.memory.arena_bytes and host_bytes."
    return failure("memory", said, remedy)


def check_limits(limits: Limits, max_in_flight: int) -> list[Finding]:
    soft, hard = limits.open_files
    needed = 2 * max_in_flight + 1024  # a connection of the client's and one to a replica each
    said = f"{soft}, at most {hard}; up to {needed} needed"
    remedy = f"ulimit -n {ENOUGH_FILES} before Ray starts; LimitNOFILE in systemd."
    if hard < needed:
        findings = [failure("open files", said, remedy)]
    elif soft < needed:
        findings = [warning("open files", said, remedy)]
    else:
        findings = [ok("open files", said)]
    shm = limits.shm_bytes
    if shm is None or shm < ENOUGH_SHM:
        told = "there is none" if shm is None else gib(shm)
        remedy = "Ray's object store then lies on a disk: docker run --shm-size=2g."
        return [*findings, warning("/dev/shm", told, remedy)]
    return [*findings, ok("/dev/shm", gib(shm))]


def check_port(port: int, held_by: str) -> Finding:
    """held_by: "" where it is free, "loraplex" where a service of ours answers there."""
    subject = f"port {port}"
    if not held_by:
        return ok(subject, "free")
    if held_by == "loraplex":
        return ok(subject, "a loraplex service answers")
    remedy = "End that, or choose another: http_options.port; PORT= with make serve."
    return failure(subject, f"taken ({held_by})", remedy)


def check_disk(folder: Folder, wanted_bytes: int) -> Finding:
    """The disk tier's."""
    if folder.problem:
        return failure("disk tier", folder.problem, "Name a folder of ours to write: data_dir.")
    room = folder.free_bytes + folder.used_bytes
    said = f"{gib(folder.free_bytes)} free at {folder.path}, {gib(wanted_bytes)} wanted"
    remedy = "Make room, or lower replica.memory.disk_bytes."
    if room < min(LEAST_DISK, wanted_bytes):
        return failure("disk tier", said, remedy)
    if room < wanted_bytes:
        return warning("disk tier", said, remedy)
    return ok("disk tier", said)


def check_import_root(folder: Folder | None) -> Finding:
    if folder is None:
        return ok("import root", "none: adapters come by upload or from publish.import_store")
    if folder.problem:
        remedy = "Make it, readable by us, or leave import_root out."
        return failure("import root", folder.problem, remedy)
    return ok("import root", folder.path)


def check_ray(facts: RayFacts, config: AppConfig | None) -> list[Finding]:
    if not facts.asked:
        return [ok("ray cluster", "not looked at; --ray ADDRESS does")]
    if facts.problem:
        return [failure("ray cluster", facts.problem, "Start it, or mend the address.")]
    findings = [ok("ray cluster", f"{facts.num_nodes} nodes, {facts.num_gpus:g} GPUs")]
    if config is None:
        return findings
    try:
        check_hosts(config, facts.num_nodes)
    except ConfigError as error:
        said, _, remedy = error.message.partition(". ")
        findings.append(failure("ray nodes", said, remedy))
    replica = config.replica
    if replica.device == "cuda" and facts.num_gpus < replica.num_replicas * replica.gpus:
        said = f"{replica.num_replicas} replicas need {replica.num_replicas * replica.gpus:g} GPUs"
        remedy = "Add nodes with GPUs, or lower replica.num_replicas."
        findings.append(warning("ray gpus", f"{said}; there are {facts.num_gpus:g}", remedy))
    return findings


def check_ray_settings(wanted: Mapping[str, str], found: Mapping[str, str]) -> Finding:
    wrong = [f"{name}={value}" for name, value in wanted.items() if found.get(name) != value]
    if not wrong:
        return ok("ray settings", "as measured best")
    remedy = f"Before Ray starts, on every node: export {' '.join(wrong)}"
    return warning("ray settings", f"{len(wrong)} of {len(wanted)} not set here", remedy)

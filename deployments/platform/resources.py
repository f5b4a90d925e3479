"""What this process may use of its machine: memory, processors, instructions.

Containers are limited by cgroups, so MemTotal and the processor count of the machine say too much.
Every function takes the root of the file system, so that tests show it a folder of their own.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/")


def memory_bytes(root: Path = ROOT) -> int:
    """The least of the memory limits on this process: its cgroup's and its ancestors', MemTotal."""
    limits = [_mem_total(root)]
    unified, v1 = _cgroup_folders(root, "memory")
    limits += [n for d in unified if (n := _number(d / "memory.max")) is not None]
    limits += [n for d in v1 if (n := _number(d / "memory.limit_in_bytes")) is not None]
    return min(limits)


def num_cpus(root: Path = ROOT) -> int:
    """Whole processors: the least of the scheduler's affinity and every cgroup quota, >= 1."""
    limits = [float(len(os.sched_getaffinity(0)))]
    unified, v1 = _cgroup_folders(root, "cpu")
    for folder in unified:
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            limits.append(int(quota) / int(period))
    for folder in v1:
        quota_us, period_us = (_number(folder / f"cpu.cfs_{x}_us") for x in ("quota", "period"))
        if quota_us and period_us:
            limits.append(quota_us / period_us)
    return max(1, int(min(limits)))


def has_fast_bf16(root: Path = ROOT) -> bool:
    """Whether the processor multiplies bf16 in hardware. Without, bf16 is slower than float32."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return bool({"avx512_bf16", "amx_bf16"} & set(value.split()))
    return False


def _cgroup_folders(root: Path, controller: str) -> tuple[list[Path], list[Path]]:
    """Folders that can limit this process, of cgroup v2 and of v1, from its own up to the root."""
    unified: list[Path] = []
    v1: list[Path] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            unified += _upwards(root / "sys/fs/cgroup", path)
        elif controller in controllers.split(","):
            v1 += _upwards(root / "sys/fs/cgroup" / controller, path)
    return unified, v1


def _upwards(mount: Path, path: str) -> list[Path]:
    """In a container the path may name a folder of the host's tree: missing ones are no limit."""
    folder = mount / path.strip("/")
    return [folder, *(p for p in folder.parents if p.is_relative_to(mount))]


def _mem_total(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

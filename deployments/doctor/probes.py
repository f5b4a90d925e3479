"""Where `loraplex doctor` looks at this machine and at Ray. Nothing is changed."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import httpx

from deployments.doctor.machine import Folder, Gpu, GpuFacts, Limits, Package, RayFacts
from deployments.platform import resources

OURS = "loraplex"
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?([<>=!~][^;]*)?$")
TORCH = "import torch,json;print(json.dumps([torch.version.cuda or '',torch.cuda.is_available()]))"
NVIDIA_SMI = "name,driver_version,memory.total,memory.free,compute_cap"
RAY = """
import json, logging, sys, ray
ray.init(sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
nodes = sum(bool(node["Alive"]) for node in ray.nodes())
print(json.dumps([nodes, ray.cluster_resources().get("GPU", 0.0)]))
"""
CHILD_S = 60.0
SHM = Path("/dev/shm")


def packages() -> list[Package]:
    """What this distribution needs to run, extras aside, and what is installed."""
    found = []
    for requirement in metadata.requires(OURS) or ():
        match = REQUIREMENT.match(requirement)
        if match is None:  # of an extra
            continue
        try:
            version = metadata.version(match[1])
        except metadata.PackageNotFoundError:
            version = None
        found.append(Package(match[1], (match[2] or "").strip(), version))
    return found


def gpus() -> GpuFacts:
    """torch is asked in a process of its own: it may take long, or crash."""
    found = _read_smi(_output(["nvidia-smi", f"--query-gpu={NVIDIA_SMI}", "--format=csv,noheader"]))
    if not found:
        return GpuFacts()
    said = _output([sys.executable, "-c", TORCH])
    cuda, usable = json.loads(said.splitlines()[-1]) if said else ("", False)
    return GpuFacts(cuda, usable, found[0][0], tuple(gpu for _, gpu in found))


def _read_smi(text: str) -> list[tuple[str, Gpu]]:
    """(driver, GPU) of each line; one that isn't as expected is left out."""
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            name, driver, total, free, capability = row
            major, minor = capability.split(".")
            sizes = [int(size.removesuffix("MiB")) << 20 for size in (total, free)]
            found.append((driver, Gpu(name, sizes[0], sizes[1], (int(major), int(minor)))))
        except ValueError:
            continue
    return found


def _output(command: list[str]) -> str:
    """What a command prints; "" where it can't be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def machine_limits() -> Limits:
    try:
        shm: int | None = shutil.disk_usage(SHM).total
    except OSError:
        shm = None
    return Limits(resources.memory_bytes(), resource.getrlimit(resource.RLIMIT_NOFILE), shm)


def port_holder(port: int) -> str:
    """Who listens on this port: "" for nobody, `loraplex` for a service of ours."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
            return ""
        except OSError as error:
            why = error.strerror or str(error)
    try:
        health = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).json()
        return OURS if health == {"status": "ok"} else "another program"
    except (httpx.HTTPError, ValueError):
        return why


def written_folder(path: Path) -> Folder:
    """A folder that the service writes to, made when it starts."""
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Folder(str(path), f"{there} can't be written")
    used = sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) if there == path else 0
    return Folder(str(path), "", shutil.disk_usage(there).free, used)


def read_folder(path: Path) -> Folder:
    if not path.is_dir():
        return Folder(str(path), f"{path} is no folder")
    readable = os.access(path, os.R_OK | os.X_OK)
    return Folder(str(path), "" if readable else f"{path} can't be read")


def ray_cluster(address: str, timeout_s: float = CHILD_S) -> RayFacts:
    """Connects, in a process of its own: where nothing answers Ray tries for many minutes. With
    `address` empty, looks nowhere."""
    if not address:
        return RayFacts()
    try:
        done = subprocess.run(
            [sys.executable, "-c", RAY, address],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return RayFacts(True, f"{address} doesn't answer as Ray within {timeout_s:g} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended"])[-1]
        return RayFacts(True, f"{address}: {last.partition(': ')[2] or last}"[:300])
    nodes, gpus = json.loads(done.stdout.strip().splitlines()[-1])
    return RayFacts(True, "", nodes, gpus)

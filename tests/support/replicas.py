"""What tests of a replica's processes share: a small fake-device config, a tokenizer, calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models

from deployments.replica.replica_config import ReplicaConfig
from engine.config import EngineConfig, MemoryConfig, ModelConfig, ScheduleConfig, StoreConfig
from engine.types import AdapterRef, Request, Tenant

LOADER = "tests.support.loader_double"
NUM_TOKENS = 32000


def tokenizer_file(folder: Path) -> str:
    """Token i reads `<i>`, so that a test sees every token in the text."""
    tokenizer = Tokenizer(models.BPE({f"<{i}>": i for i in range(NUM_TOKENS)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def engine_config(folder: Path, *, step_s: float = 0.001, max_seqs: int = 32) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path="", device="fake", fake_step_s=step_s, max_model_len=4096),
        memory=MemoryConfig(arena_bytes=64 << 20, host_bytes=8 << 20),
        store=StoreConfig(url=f"file://{folder}", disk_path=str(folder)),
        schedule=ScheduleConfig(max_seqs=max_seqs),
    )


def replica_config(folder: Path, engine: EngineConfig, **changes: Any) -> ReplicaConfig:
    return ReplicaConfig(engine, tokenizer_file(folder), "rev", **changes)


def adapter(name: str, *, uri: str = "") -> AdapterRef:
    return AdapterRef("acme", name, f"digest-{name}", "rev", (8,), 4096, 16384, uri)


def request(
    request_id: str = "r", *, ref: AdapterRef | None = None, max_tokens: int = 8, **changes: Any
) -> Request:
    return Request(request_id, Tenant("acme"), ref, (1, 2, 3), max_tokens, **changes)


def call(*requests: Request, deadline_s: float = 30.0) -> dict[str, Any]:
    return {"v": 1, "requests": [r.to_wire() for r in requests], "deadline_s": deadline_s}


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Look again every few milliseconds: for what other processes do in their own time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs: neither gone nor a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"

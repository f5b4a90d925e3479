"""A replica whose core serves on a GPU: the quickstart's answers, and what a GPU's failure does."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer

from engine.types import Request, Tenant
from tests.support.oracle import Answer, Oracle, check_equal, check_formats, load
from tests.support.quickstart_replica import GREEDY, QuickstartReplica, prepare
from tests.support.replicas import alive, until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

DEVICE = "cuda"
SHARE = {"utilisation": 0.05, "host_bytes": 64 << 20}
"""Of the GPU: tests may run side by side."""

Start = Callable[..., Awaitable[QuickstartReplica]]


@pytest.fixture(scope="module")
def home(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared. LORAPLEX_TEST_HOME: where that may have been done already."""
    home = Path(os.environ.get("LORAPLEX_TEST_HOME") or tmp_path_factory.mktemp("home"))
    prepare(project, home)
    return home


@pytest_asyncio.fixture
async def start(project: Path, home: Path) -> AsyncIterator[Start]:
    started: list[QuickstartReplica] = []

    async def start(**options: Any) -> QuickstartReplica:
        options = {"device": DEVICE, "memory": SHARE, **options}
        started.append(await QuickstartReplica.start(project, home, **options))
        return started[-1]

    yield start
    for replica in started:
        await replica.stop()


async def answers(replica: QuickstartReplica, oracle: Oracle) -> list[Answer]:
    """All held-out prompts on every adapter and on the base, at once."""

    def prompt(run: Any) -> str:
        return str(oracle.prompts[run.prompt]["prompt"])

    asked = [replica.ask(prompt(run), run.adapter, run, oracle.max_tokens) for run in oracle.runs]
    return list(await asyncio.gather(*asked))


async def test_answers_in_fp32_are_those_of_transformers_and_peft(start: Start) -> None:
    replica, oracle = await start(dtype="float32"), load()
    found = await answers(replica, oracle)
    assert len(found) == 240
    check_equal(found, Tokenizer.from_file(str(replica.config.base.path / "tokenizer.json")))
    equal = sum(answer.is_the_oracles for answer in found)
    print(f"{equal} of {len(found)} equal; {(await replica.replica.status())['device']}")


async def test_formats_hold_in_bf16(start: Start) -> None:
    replica, oracle = await start(dtype="bfloat16"), load()
    print(dict(check_formats(await answers(replica, oracle), oracle)))


async def test_the_gpu_is_shared_out_as_measured(start: Start) -> None:
    device = (await (await start(dtype="bfloat16")).replica.status())["device"]
    memory = device["memory"]
    print(device)
    assert (device["kind"], device["dtype"], device["depth"]) == ("cuda", "bfloat16", 1)
    assert memory["weights_bytes"] > 200e6
    assert 0 < memory["free_bytes"] <= memory["total_bytes"]
    taken = memory["weights_bytes"] + memory["workspace_bytes"] + memory["graph_bytes"]
    share = SHARE["utilisation"] * (memory["free_bytes"] - taken)
    assert share - device["page_bytes"] < device["arena_bytes"] <= share
    assert device["arena_bytes"] == memory["arena_bytes"]


@pytest.mark.parametrize("fault", ["address", "assertion"])
async def test_an_error_of_the_gpu_ends_every_stream_within_a_second(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    order = tmp_path / "fault"
    order.write_text(fault)
    monkeypatch.setenv("LORAPLEX_TEST_FAULT", str(order))
    left: list[float] = []
    replica = await start(
        dtype="bfloat16",
        core="tests.support.failing_core",
        leave=lambda status: left.append(time.monotonic()),
    )
    core = replica.replica._children.pids["core"]
    ends: list[float] = []

    async def stream(i: int) -> dict[str, Any]:
        request = Request(f"r{i}", Tenant("acme"), None, (1, 2, 3), 1000, GREEDY)
        events = await replica.events(request)
        ends.append(time.monotonic())
        return events[-1]

    last = await asyncio.gather(*(stream(i) for i in range(16)))
    await until(lambda: not alive(core))
    gone = time.monotonic()
    await until(lambda: bool(left))
    kind, at = order.read_text().split()
    told_s, gone_s, left_s = (t - float(at) for t in (max(ends), gone, left[0]))
    print(f"\n{kind}: streams told after {told_s:.3f} s, core gone {gone_s:.3f}, left {left_s:.3f}")
    assert [event["error"]["code"] for event in last] == ["core_lost"] * 16
    assert max(told_s, gone_s) < 1.0
    assert "stats" in await replica.replica.status()
    again = await start(dtype="bfloat16")
    answered = await again.events(Request("r", Tenant("acme"), None, (1, 2, 3), 8, GREEDY))
    print(f"{kind}: a new replica answers {time.monotonic() - float(at):.1f} s after the fault")
    assert answered[-1]["finish"] == "length"

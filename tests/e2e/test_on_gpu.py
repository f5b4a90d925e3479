"""`make serve` on a machine with a GPU: it finds the GPU by itself, serves, loses a core, ends.

Prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from deployments.quickstart.tenants import DEMO_TENANTS
from tests.support.formats import FORMATS
from tests.support.service import Service
from tests.support.story import LONG, Story

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

REPLACED_S = 180.0


@pytest.fixture(scope="module")
def service(
    project: Path, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """On the device and in the dtype that it chooses itself. Its data may lie there already."""
    home = os.environ.get("LORAPLEX_TEST_HOME") or tmp_path_factory.mktemp("home")
    service = Service(project, Path(home), free_port(), dtype=None)
    yield service
    service.stop()


def ask(service: Service) -> dict[str, str]:
    """Each tenant's demo prompt to its own adapter: the answers, by adapter."""
    found = {}
    for demo in DEMO_TENANTS:
        body = {
            "model": demo.model,
            "messages": [{"role": "user", "content": demo.prompt}],
            "max_tokens": 60,
            "temperature": 0,
        }
        with service.client(demo.id) as client:
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        found[demo.adapter] = answer["choices"][0]["message"]["content"]
    return found


def core_of(service: Service) -> int | None:
    """The process id of the only replica's core, once there is one that answers."""
    try:
        replicas = service.replicas()
    except httpx.HTTPError:
        return None
    return replicas[0]["pids"].get("core") if len(replicas) == 1 else None


def tokens_a_second(service: Service) -> float:
    story = Story()
    story.read(service, "acme")
    assert story.finish == "length"
    return (LONG["max_tokens"] - 1) / (story.times_s[-1] - story.times_s[0])  # type: ignore[operator]


def kill_the_core(service: Service) -> dict[str, float]:
    """Seconds from the kill to the stream's error event and to a new core's first answer."""
    story = Story()
    thread = threading.Thread(target=story.read, args=(service, "acme"))
    thread.start()
    assert story.begun.wait(60)
    core = core_of(service)
    assert core is not None
    killed = time.monotonic()
    os.kill(core, signal.SIGKILL)
    thread.join(60)
    told = time.monotonic()
    assert story.text and story.error is not None and not story.done, story
    while core_of(service) in (None, core):
        assert time.monotonic() < killed + REPLACED_S
        time.sleep(0.1)
    answers = ask(service)
    assert all(FORMATS[adapter](text) for adapter, text in answers.items()), answers
    return {"told_s": told - killed, "replaced_s": time.monotonic() - killed}


def test_the_quickstart_serves_on_the_gpu(service: Service) -> None:
    seen: dict[str, Any] = {"startup_s": service.startup_s}
    (replica,) = service.replicas()
    seen["device"] = replica["device"]
    assert replica["device"]["kind"] == "cuda"
    assert replica["device"]["dtype"] == "bfloat16"
    assert replica["device"]["depth"] == 1
    assert replica["device"]["memory"]["device"] in service.output
    seen["answers"] = ask(service)
    assert all(FORMATS[adapter](text) for adapter, text in seen["answers"].items()), seen
    seen["stream_tok_s"] = [tokens_a_second(service) for _ in range(2)]
    seen["kill"] = kill_the_core(service)
    began = time.monotonic()
    code = service.stop()
    seen["stop_s"] = time.monotonic() - began
    print("\n" + json.dumps(seen))
    assert code == 0
    assert service.processes() == {}

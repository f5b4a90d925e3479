"""An adapter whose weights are finite and whose output isn't, on the running service: it ends in
quarantine, its tenant is told why, and nobody else notices."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import AdapterConfig
from tests.support.service import BASE, TENANT_OF, Service

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

MODEL = "unsound/broken"
MAX_FAULTS = AdapterConfig().max_faults
NEIGHBOURS = [
    *((tenant, f"{tenant}/{adapter}") for adapter, tenant in TENANT_OF.items()),
    *((tenant, BASE) for tenant in TENANT_OF.values()),
]
"""(who asks, what for). The base's go to either replica."""


def ask(client: httpx.Client, model: str, seed: int) -> httpx.Response:
    """Drawn at temperature 1, where every logit counts."""
    return client.post(
        "/v1/chat/completions",
        json={
            "model": model,
            "messages": [{"role": "user", "content": f"Tell me of {seed} ships."}],
            "max_tokens": 32,
            "ignore_eos": True,
            "temperature": 1,
            "seed": seed,
        },
    )


def neighbours_answers(service: Service, begun: threading.Event) -> list[str]:
    """All at once; `begun` when the first is there."""

    def one(number: int) -> str:
        who, model = NEIGHBOURS[number]
        with service.client(who) as client:
            answer = ask(client, model, number).raise_for_status()
        begun.set()
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    with ThreadPoolExecutor(len(NEIGHBOURS)) as pool:
        return list(pool.map(one, range(len(NEIGHBOURS))))


def answers_until(over: threading.Event, service: Service, begun: threading.Event) -> list[Any]:
    """The neighbours', asked again and again: one at least is under way from `begun` to `over`."""
    rounds = [neighbours_answers(service, begun)]
    while not over.is_set():
        rounds.append(neighbours_answers(service, begun))
    return rounds


@pytest.fixture
def unsound(service: Service, project: Path) -> Iterator[httpx.Client]:
    """The client of a tenant whose adapter `broken` is published."""
    folder = service.data / "import" / "broken"
    shutil.copytree(project / "deployments/quickstart/adapters/sql", folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, tensor in tensors.items():
        if "lora_B" in name:
            tensors[name] = torch.full_like(tensor, torch.finfo(tensor.dtype).max)
    save_file(tensors, folder / "adapter_model.safetensors")
    with service.client("admin") as admin:
        made = admin.post("/v1/tenants", json={"id": "unsound"}).raise_for_status().json()
        publish(admin, folder)
        headers = {"Authorization": f"Bearer {made['key']}"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=300) as client:
            yield client
        admin.delete(f"/v1/adapters/{MODEL}").raise_for_status()
    shutil.rmtree(folder)


def publish(admin: httpx.Client, folder: Path) -> None:
    tenant, name = MODEL.split("/")
    body: dict[str, Any] = {"tenant": tenant, "name": name, "folder": folder.name}
    admin.post("/v1/adapters", json=body).raise_for_status()


def test_an_adapter_that_overflows_is_refused_and_its_neighbours_draw_the_same_tokens(
    service: Service, project: Path, unsound: httpx.Client
) -> None:
    alone = neighbours_answers(service, threading.Event())
    begun, over = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(answers_until, over, service, begun)
        try:
            assert begun.wait(120)
            told = [ask(unsound, MODEL, number) for number in range(MAX_FAULTS + 1)]
        finally:
            over.set()
        assert all(answers == alone for answers in beside.result())
    errors = [answer.json()["error"] for answer in told]
    assert [error["code"] for error in errors] == (
        ["not_finite"] * (MAX_FAULTS - 1) + ["adapter_quarantined"] * 2
    )
    assert [answer.status_code for answer in told[-2:]] == [422, 422]
    for error in errors[-2:]:
        assert "quarantine" in error["message"] and "weights are sound" in error["message"]
    assert ask(unsound, BASE, 1).status_code == 200
    with service.client("acme") as other:
        refused = ask(other, MODEL, 1)
    assert refused.status_code == 404 and "quarantine" not in refused.text

    sound = shutil.copytree(
        project / "deployments/quickstart/adapters/pirate", service.data / "import" / "sound"
    )
    with service.client("admin") as admin:
        publish(admin, sound)
    shutil.rmtree(sound)
    until = time.monotonic() + 60  # an ingress knows of it within two seconds
    while ask(unsound, MODEL, 1).status_code != 200:
        assert time.monotonic() < until

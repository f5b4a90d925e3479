"""Bad input gets its own clear 4xx and changes nothing."""

from __future__ import annotations

import json
import pickle
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.service import BASE, Service

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

MESSAGES = [{"role": "user", "content": "How many cars are there?"}]
GOOD = {"model": "globex/sql", "messages": MESSAGES, "max_tokens": 4}


def _state(service: Service) -> tuple[Any, Any, list[Path]]:
    with service.client("admin") as admin:
        adapters, tenants = (admin.get(f"/v1/{what}").json() for what in ("adapters", "tenants"))
    for adapter in adapters["data"]:
        del adapter["status"], adapter["replicas"]  # where it is resident at the moment
    return adapters, tenants, sorted((service.data / "objects").rglob("*"))


@pytest.fixture(scope="module")
def before(service: Service) -> tuple[Any, Any, list[Path]]:
    return _state(service)


@pytest.fixture(autouse=True)
def nothing_changes(service: Service, before: tuple[Any, Any, list[Path]]) -> Iterator[None]:
    """What the service holds is the same afterwards, and it still answers."""
    yield
    assert _state(service) == before
    with service.client("globex") as client:
        assert client.post("/v1/chat/completions", json=GOOD).status_code == 200


def _error(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The OpenAI-shaped error of an answer with that status."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"] and error["type"] and error["code"]
    assert answer.headers["x-request-id"]
    return error


def test_unknown_model_and_anothers_adapter_in_the_same_words(service: Service) -> None:
    with service.client("globex") as client:
        words = []
        for model in ("globex/nothing", "acme/support", "acme/nothing"):
            answer = client.post("/v1/chat/completions", json={**GOOD, "model": model})
            error = _error(answer, 404)
            words.append((error["message"].replace(model, "?"), error["code"], error["type"]))
    assert len(set(words)) == 1


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"Authorization": "Bearer lp-nobody"}, "invalid_api_key"),
        ({"Authorization": "Basic bHA6eA=="}, "invalid_api_key"),
    ],
    ids=["no key", "wrong key", "wrong scheme"],
)
def test_keys(service: Service, headers: dict[str, str], code: str) -> None:
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=GOOD, headers=headers)
    assert _error(answer, 401)["code"] == code


def test_a_tenants_key_is_no_admin_key(service: Service) -> None:
    with service.client("acme") as client:
        _error(client.get("/v1/adapters"), 403)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"model": "globex/sql", "messages": [', "JSON"),
        ([], "JSON object"),
        ({**GOOD, "max_tokens": -1}, "max_tokens"),
        ({**GOOD, "max_tokens": 0}, "max_tokens"),
        ({**GOOD, "max_tokens": "many"}, "max_tokens"),
        ({**GOOD, "temperature": 9}, "temperature"),
        ({**GOOD, "n": 0}, "n"),
        ({**GOOD, "messages": []}, "messages"),
        ({"messages": MESSAGES}, "model"),
        ({**GOOD, "messages": [{"role": "user", "content": "word " * 5000}]}, "context"),
        ({**GOOD, "max_tokens": 1_000_000}, "context"),
    ],
    ids=[
        *("cut JSON", "not an object", "negative max_tokens", "no tokens", "tokens in words"),
        *("hot", "no choices", "no messages", "no model", "prompt too long", "answer too long"),
    ],
)
def test_bodies(service: Service, body: Any, named: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with service.client("globex") as client:
        answer = client.post("/v1/chat/completions", content=content)
    assert named in _error(answer, 400)["message"]


def test_a_body_over_the_limit(service: Service) -> None:
    with service.client("globex") as client:
        answer = client.post("/v1/chat/completions", content=b" " * (5 << 20))
    _error(answer, 413)


@pytest.mark.parametrize("session", [b"caf\xe9", "caf\u00e9".encode(), b"\xff\xfe"])
def test_a_session_may_have_any_bytes(service: Service, session: bytes) -> None:
    """Ray's proxy would answer 500 to what isn't UTF-8."""
    with service.client("globex") as client:
        headers = {b"x-session-id": session}
        answer = client.post("/v1/chat/completions", json=GOOD, headers=headers)
    assert answer.status_code == 200, answer.text


def test_an_upload_over_the_limit_is_refused_before_it_is_sent(service: Service) -> None:
    """A terabyte is announced; the answer comes through Ray's proxy while none of it has."""
    with service.client("admin") as admin:
        key = admin.headers["authorization"]
    head = (
        f"POST /v1/adapters HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1099511627776\r\n\r\n"
    )
    with socket.create_connection(
        ("127.0.0.1", int(service.url.rsplit(":", 1)[1])), timeout=60
    ) as client:
        client.sendall(head.encode())
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 413 ") and b"publish.max_upload_bytes" in answer


# Adapters ---------------------------------------------------------------------------------------
Tensors = dict[str, torch.Tensor]


def _wrong_shape(tensors: Tensors) -> None:
    name = next(n for n in tensors if "lora_A" in n)
    tensors[name] = tensors[name][:, :-1].contiguous()


def _missing(tensors: Tensors) -> None:
    del tensors[next(n for n in tensors if "lora_B" in n)]


def _nan(tensors: Tensors) -> None:
    tensors[next(n for n in tensors if "lora_A" in n)][0, 0] = float("nan")


def _unknown(tensors: Tensors) -> None:
    tensors["base_model.model.model.layers.0.mystery.lora_A.weight"] = torch.zeros(8, 576)


@pytest.fixture
def folder(service: Service, project: Path) -> Iterator[Path]:
    """A copy of a good adapter below the import root."""
    path = service.data / "import" / "candidate"
    shutil.copytree(project / "deployments/quickstart/adapters/sql", path)
    yield path
    shutil.rmtree(path)


def _publish(service: Service, folder: Path | str) -> httpx.Response:
    body = {"tenant": "globex", "name": "candidate", "folder": str(folder)}
    with service.client("admin") as admin:
        return admin.post("/v1/adapters", json=body)


@pytest.mark.parametrize("damage", [_wrong_shape, _missing, _nan, _unknown])
def test_damaged_tensors(service: Service, folder: Path, damage: Callable[[Tensors], None]) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    _error(_publish(service, folder), 422)


def test_a_cut_file(service: Service, folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    _error(_publish(service, folder), 422)


def test_a_pickle(service: Service, folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({"weight": 1}))
    assert "pickle" in _error(_publish(service, folder), 422)["message"]


def test_a_wrong_base(service: Service, folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "meta-llama/Llama-3.1-8B"
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert BASE in _error(_publish(service, folder), 422)["message"]


def test_a_folder_outside_the_import_root(service: Service, folder: Path, tmp_path: Path) -> None:
    outside = shutil.copytree(folder, tmp_path / "candidate")
    link = folder.parent / "link"
    link.symlink_to(outside)
    try:
        words = [
            _error(_publish(service, where), 400)["message"]
            for where in (outside, tmp_path / "nothing", "../../../..", link, "/etc")
        ]
    finally:
        link.unlink()
    assert len(set(words)) == 1


def test_an_unknown_tenant(service: Service, folder: Path) -> None:
    body = {"tenant": "nobody", "name": "candidate", "folder": str(folder)}
    with service.client("admin") as admin:
        _error(admin.post("/v1/adapters", json=body), 404)

"""What a person is shown can be copied."""

from __future__ import annotations

import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from deployments.quickstart.banner import Facts, show
from deployments.quickstart.tenants import ADMIN, DEMO_TENANTS

URL = "http://127.0.0.1:8123"
KEYS = {who: f"lp-{who}-key" for who in (ADMIN, *(demo.id for demo in DEMO_TENANTS))}

ON_CPU = {
    "kind": "cpu",
    "dtype": "float32",
    "startup_s": 3.2,
    "arena_bytes": 3 << 29,
    "memory": None,
}
ON_GPU = {**ON_CPU, "kind": "cuda", "memory": {"device": "NVIDIA H200"}}
DEVICES = [ON_CPU, ON_GPU]


@pytest.fixture
def shown() -> str:
    """On a narrow terminal."""
    out = io.StringIO()
    facts = Facts(
        URL, KEYS, "base", DEVICES, "http://127.0.0.1:8265", Path("/data/import"), Path("loraplex")
    )
    show(Console(file=out, width=60), facts)
    return out.getvalue()


def test_the_curl_line_is_a_command(shown: str) -> None:
    begin = shown.index("curl ")
    command = shlex.split(shown[begin : shown.index("\n\n", begin)])
    assert command[1] == f"{URL}/v1/chat/completions"
    assert f"Authorization: Bearer {KEYS['acme']}" in command
    body = json.loads(command[command.index("-d") + 1])
    assert body["model"] == "acme/support"


def test_the_snippet_is_python(shown: str) -> None:
    begin = shown.index("from openai")
    code = shown[begin : shown.index("\n\n", begin)]
    compile(code, "snippet", "exec")
    assert f'base_url="{URL}/v1"' in code


def test_every_key_and_the_operators_command_are_there(shown: str) -> None:
    assert all(key in shown for key in KEYS.values())
    assert f"export LORAPLEX_URL={URL} LORAPLEX_ADMIN_KEY={KEYS[ADMIN]}" in shown
    assert "loraplex adapters publish acme/mine mine" in shown


def test_the_devices_are_named(shown: str) -> None:
    words = " ".join(shown.split())
    assert "A replica on cpu, float32: core ready after 3 s, an arena of 1.5 GiB." in words
    assert "A replica on cuda (NVIDIA H200), float32" in words


@pytest.mark.parametrize(
    ("devices", "has_gpu", "told"),
    [([ON_CPU], True, True), ([ON_CPU], False, False), ([ON_GPU], True, False)],
)
def test_a_gpu_that_is_not_used_is_pointed_out(
    devices: list[dict[str, object]], has_gpu: bool, told: bool
) -> None:
    out = io.StringIO()
    facts = Facts(URL, KEYS, "base", devices, None, None, Path("loraplex"), has_gpu)
    show(Console(file=out, width=200), facts)
    assert ("GPU is not used" in out.getvalue()) == told

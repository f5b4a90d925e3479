"""An ingress without Ray: a small model folder, replicas by script, a control by memory."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from deployments.changes.adapters import Adapters
from deployments.changes.tenants import Tenants
from deployments.config import AppConfig, load
from deployments.control.gatekeeper import Gatekeeper
from deployments.ingress.ingress import Parts, create_app
from deployments.registry import open_registry
from deployments.registry.records import TenantRecord
from engine.adapters.store import (
    ObjectStore,
    open_store,
)
from engine.errors import LoraplexError
from engine.types import AdapterRef, Tenant
from tests.support.memory_control import REVISION, MemoryControl, publish
from tests.support.polls import Polls

CONTEXT = 64
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
HANG = "hang"
Step = list[dict[str, Any]] | LoraplexError | str
Script = Callable[[Mapping[str, Any]], Iterable[Step]]


def write_model(
    folder: Path, *, template: str | None = TEMPLATE, num_tokens: int = 300, context: int = CONTEXT
) -> Path:
    """A Hugging Face folder without weights: every byte is a token, </s> ends a text.

    Tokens that no text has read `<i>`, so that what a fake device says shows in an answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"</s>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}
    vocab |= {f"<{i}>": i for i in range(len(vocab), num_tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": num_tokens,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": context,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer_config: dict[str, Any] = {"eos_token": "</s>"}
    if template is not None:
        tokenizer_config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


def echo(call: Mapping[str, Any]) -> Iterable[Step]:
    """Each sequence says two pieces, `max_tokens` tokens in all."""
    num = len(call["requests"])
    yield [{"i": i, "text": f"one{i}", "tokens": 1} for i in range(num)]
    yield [
        {
            "i": i,
            "text": " two",
            "tokens": 1,
            "finish": "stop",
            "prompt_tokens": len(request["prompt"]),
            "cached_tokens": 1,
            "completion_tokens": 2,
        }
        for i, request in enumerate(call["requests"])
    ]


class ScriptedStream:
    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = iter(steps)
        self.ended = False
        self.cancelled = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[list[dict[str, Any]]]:
        return self

    async def __anext__(self) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        step = next(self._steps, None)
        if step is None:
            self.ended = True
            raise StopAsyncIteration
        if isinstance(step, Exception):
            raise step
        if step == HANG:
            await asyncio.Event().wait()
        assert isinstance(step, list)
        return step

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass
class ScriptedModel:
    """Replicas whose every call goes as `script` says. `calls`: what was asked, with the keys;
    `drops`: what was told to be retired, which fails as `deaf` says."""

    script: Script = echo
    calls: list[tuple[Mapping[str, Any], str, str]] = field(default_factory=list)
    streams: list[ScriptedStream] = field(default_factory=list)
    replies: list[Mapping[str, Any]] | LoraplexError = field(default_factory=list)
    drops: list[tuple[list[AdapterRef], bool]] = field(default_factory=list)
    deaf: LoraplexError | None = None
    hints: list[tuple[AdapterRef, Tenant]] = field(default_factory=list)
    told: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    answers: list[Mapping[str, Any]] = field(default_factory=list)

    def generate(
        self, call: Mapping[str, Any], *, ring_key: str, adapter_key: str
    ) -> ScriptedStream:
        self.calls.append((call, ring_key, adapter_key))
        self.streams.append(ScriptedStream(self.script(call)))
        return self.streams[-1]

    async def drop(self, refs: Sequence[AdapterRef], now: bool, timeout_s: float) -> None:
        self.drops.append((list(refs), now))
        if self.deaf is not None:
            raise self.deaf

    def hint(self, ref: AdapterRef, tenant: Tenant) -> None:
        self.hints.append((ref, tenant))

    async def tell(
        self, method: str, order: Mapping[str, Any], timeout_s: float
    ) -> list[Mapping[str, Any]]:
        self.told.append((method, order))
        return self.answers

    async def tell_all(self, method: str, order: Mapping[str, Any], timeout_s: float) -> bool:
        await self.tell(method, order, timeout_s)
        return True

    async def statuses(self, timeout_s: float) -> list[Mapping[str, Any]]:
        if isinstance(self.replies, LoraplexError):
            raise self.replies
        return [{k: v for k, v in told.items() if k != "tenants"} for told in self.replies]

    async def activity(self, timeout_s: float) -> list[Mapping[str, Any]]:
        if isinstance(self.replies, LoraplexError):
            raise self.replies
        return self.replies

    @property
    def requests(self) -> list[Mapping[str, Any]]:
        """Those of the last call."""
        requests: list[Mapping[str, Any]] = self.calls[-1][0]["requests"]
        return requests


@dataclass
class World:
    """One ingress's surroundings: tenants t1 and t2 with a key each, an admin key; t1/bot."""

    config: AppConfig
    registry: Polls
    tenants: Tenants
    model: ScriptedModel
    control: MemoryControl
    store: ObjectStore
    keys: dict[str, str]

    @classmethod
    def build(cls, folder: Path, **sections: Any) -> World:
        values = {
            "data_dir": str(folder / "data"),
            "base": {"path": str(write_model(folder / "model")), "name": "org/tiny"},
            **sections,
        }
        config = load(values, environ={})
        registry = Polls(open_registry(config.registry_url))
        tenants = Tenants(registry, clock=lambda: 5.0, random_bytes=_counting_bytes())
        keys = {"admin": tenants.create_admin_key()}
        for tenant in ("t1", "t2"):
            keys[tenant] = tenants.create(TenantRecord(tenant))[1]
        publish(registry, "t1", "bot")
        model = ScriptedModel()
        store = open_store(config.store_url, config.store_options)
        adapters = Adapters(registry, store, keep_versions=10, clock=lambda: 9.0)
        gatekeeper = Gatekeeper(config.gate, adapters, time.monotonic)
        control = MemoryControl(registry, store, gatekeeper)
        return cls(config, registry, tenants, model, control, store, keys)

    def parts(self, **changes: Any) -> Parts:
        parts = Parts(self.config, REVISION, self.registry, self.model, self.control, self.store)
        return replace(parts, **changes)


def _counting_bytes() -> Callable[[int], bytes]:
    count = 0

    def draw(num: int) -> bytes:
        nonlocal count
        count += 1
        return count.to_bytes(num, "big")

    return draw


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class InProcess:
    """`async with`: the application with its lifespan, and a client of tenant t1."""

    def __init__(self, world: World, **changes: Any) -> None:
        self._key = world.keys["t1"]
        self._app = create_app(world.parts(**changes))

    async def __aenter__(self) -> httpx.AsyncClient:
        self._lifespan = self._app.router.lifespan_context(self._app)
        await self._lifespan.__aenter__()
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self._app),
            base_url="http://test",
            headers=bearer(self._key),
        )
        return self._client

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()
        await self._lifespan.__aexit__(None, None, None)


class LocalServer:
    """`with`: the application behind a real HTTP server in a thread; answers its URL."""

    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="on")
        self._server = _Announcing(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        assert self._server.up.wait(60)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)


class _Announcing(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The decoded chunks of a stream; checks its frame and its end mark."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error in an answer; checks its shape."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def last(i: int, text: str = "", finish: str = "stop", *, completion: int = 1) -> dict[str, Any]:
    """A sequence's last event."""
    return {
        "i": i,
        "text": text,
        "tokens": 1,
        "finish": finish,
        "prompt_tokens": 2,
        "cached_tokens": 0,
        "completion_tokens": completion,
    }


def announce(model: ScriptedModel) -> asyncio.Event:
    """Set at the next call."""
    called = asyncio.Event()
    generate = model.generate

    def wrapped(*args: Any, **kwargs: Any) -> ScriptedStream:
        called.set()
        return generate(*args, **kwargs)

    model.generate = wrapped  # type: ignore[method-assign]
    return called

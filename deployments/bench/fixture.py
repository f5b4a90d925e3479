"""What the benchmarks serve: the shape of a small base without its weights, and random adapters."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from deployments.changes.tenants import Tenants
from deployments.config import AppConfig, load
from deployments.registry import open_registry
from deployments.registry.adapter_record import AdapterRecord
from deployments.registry.records import ADAPTERS, TenantRecord
from engine.types import AdapterRef, adapter_from_wire, adapter_to_wire

MODULE = "deployments.bench.fixture"
NAME = "bench"
TENANT = "bench"
VOCABULARY = 32000
LAYERS, HIDDEN, KV = 30, 576, 192
RANK = 8

CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1 << 16,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def app_config(folder: Path, replica: dict[str, Any]) -> AppConfig:
    """A service below `folder`, with the fake device and one replica unless `replica` says more."""
    return load(
        {
            "data_dir": str(folder / "data"),
            "base": {"path": str(folder / "base"), "name": NAME, "revision": "bench"},
            "import_root": str(folder / "adapters"),
            "replica": {"device": "fake", "dtype": "float32", "threads": 1, **replica},
        }
    )


def make_base(folder: Path) -> None:
    """config.json, a tokenizer that reads token i as `<i>`, and a template. No weights."""
    base = folder / "base"
    base.mkdir(parents=True)
    (base / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(VOCABULARY)}, "<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("<[0-9]+>"), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(base / "tokenizer.json"))
    (base / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))


def make_tenant(config: AppConfig, max_concurrent: int) -> str:
    """The benchmark's tenant; its API key."""
    registry = open_registry(config.registry_url)
    tenants = Tenants(registry, clock=time.time, random_bytes=secrets.token_bytes)
    _, key = tenants.create(
        TenantRecord(TENANT, max_concurrent=max_concurrent, max_queued=max_concurrent)
    )
    registry.close()
    return key


async def publish_adapters(folder: Path, config: AppConfig, count: int) -> list[AdapterRef]:
    """`count` random adapters of rank 8 on q and v of every layer, 1.8 MB each."""
    from deployments.control.control import Control  # noqa: PLC0415  torch, which others here must not have

    random = np.random.default_rng(0)
    control = Control(config)
    for number in range(count):
        write_adapter(folder / "adapters" / f"a{number}", random)
        answer = await control.publish(TENANT, f"a{number}", f"a{number}", "bench")
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
    control.close()
    registry = open_registry(config.registry_url)
    entries = registry.list(ADAPTERS).entries
    registry.close()
    return [ref for e in entries if (ref := AdapterRecord.from_value(e.value).ref) is not None]


def write_adapter(folder: Path, random: np.random.Generator) -> None:
    """A PEFT folder."""
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": NAME,
        "r": RANK,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = {}
    for layer in range(LAYERS):
        for module, out in (("q_proj", HIDDEN), ("v_proj", KV)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (out, RANK))):
                values = random.standard_normal(shape, dtype=np.float32)
                tensors[f"{name}.{part}.weight"] = values
    save_file(tensors, folder / "adapter_model.safetensors")


def prepare(folder: Path, replica: dict[str, Any], count: int) -> list[AdapterRef]:
    """`publish_adapters` in a process of its own: publishing needs torch, a replica must not have
    it. `make_base` and `make_tenant` come first."""
    command = [sys.executable, "-m", MODULE, str(folder), json.dumps(replica), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [adapter_from_wire(wire) for wire in json.loads(done.stdout)]


def main() -> None:
    folder, replica, count = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    refs = asyncio.run(publish_adapters(folder, app_config(folder, replica), count))
    print(json.dumps([adapter_to_wire(ref) for ref in refs]))


if __name__ == "__main__":
    main()

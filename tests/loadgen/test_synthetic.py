"""Synthetic adapters are PEFT's format, fit their base and differ by their seed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save_file

from loadgen.synthetic import ATTENTION, Base, BaseError, make_adapter

SHAPES = {
    "self_attn.q_proj": (48, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 48),
    "mlp.gate_proj": (80, 32),
    "mlp.up_proj": (80, 32),
    "mlp.down_proj": (32, 80),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base in two files."""
    for layer in (0, 1):
        tensors = {
            f"model.layers.{layer}.{name}.weight": np.zeros(shape, np.float32)
            for name, shape in SHAPES.items()
        }
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = np.zeros(32, np.float32)
        if layer == 0:
            tensors["model.embed_tokens.weight"] = np.zeros((100, 32), np.float32)
        save_file(tensors, tmp_path / f"model-{layer}.safetensors")
    return tmp_path


def test_every_module_has_its_shapes(folder: Path) -> None:
    modules = [name.partition(".")[2] for name in SHAPES]
    files = make_adapter(Base.read(folder, "some/base"), 4, modules, seed=1)
    config = json.loads(files["adapter_config.json"])
    assert config["r"] == 4 and config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == "some/base"
    tensors = load(files["adapter_model.safetensors"])
    assert len(tensors) == 2 * 2 * len(SHAPES)
    for name, (out, inner) in SHAPES.items():
        a, b = (tensors[f"base_model.model.model.layers.1.{name}.lora_{x}.weight"] for x in "AB")
        assert (a.shape, b.shape) == ((4, inner), (out, 4))
        assert a.dtype == b.dtype == np.float16
        assert np.abs(a).max() <= 1 / np.sqrt(inner) + 1e-3 and np.abs(b).max() > 0


def test_seeds_and_ranks_differ(folder: Path) -> None:
    base = Base.read(folder)
    one, same, other = (make_adapter(base, 4, ATTENTION, seed) for seed in (1, 1, 2))
    assert one == same
    assert one["adapter_model.safetensors"] != other["adapter_model.safetensors"]
    assert one["adapter_config.json"] == other["adapter_config.json"]


def test_what_does_not_fit_is_refused(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(BaseError, match="has no w_proj. It has down_proj, gate_proj"):
        make_adapter(Base.read(folder), 4, ["w_proj"], 1)
    with pytest.raises(BaseError, match="Name the folder of the base model"):
        Base.read(tmp_path_factory.mktemp("empty"))
    (folder / "x.safetensors").write_bytes(b"abc")
    with pytest.raises(BaseError, match="is no safetensors file"):
        Base.read(folder)

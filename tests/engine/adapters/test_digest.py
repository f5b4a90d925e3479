from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.digest import Manifest, ManifestModule, ManifestTensor, digest

MODULES = {"m.q_proj": ManifestModule(4, 2.0), "m.v_proj": ManifestModule(8, 0.1)}
TENSORS = {
    "m.q_proj.A": ManifestTensor("F32", (4, 16), "a" * 64),
    "m.q_proj.B": ManifestTensor("BF16", (16, 4), "b" * 64),
}
MANIFEST = Manifest(MODULES, TENSORS)


def test_a_manifest_comes_back():
    assert Manifest.from_bytes(MANIFEST.to_bytes()) == MANIFEST
    assert MANIFEST.digest == digest(MANIFEST.to_bytes())


def test_the_digest_of_a_manifest_never_changes():
    """It names objects that exist: a change here orphans them all."""
    assert MANIFEST.digest == "e3029909da1a22819220d72fa1e1ca7c657ca141de92f0fa38eff283fbcfc5f3"


@given(st.permutations(list(TENSORS)), st.permutations(list(MODULES)))
def test_order_does_not_matter(tensors, modules):
    again = Manifest({m: MODULES[m] for m in modules}, {t: TENSORS[t] for t in tensors})
    assert again.to_bytes() == MANIFEST.to_bytes()


@pytest.mark.parametrize(
    "other",
    [
        Manifest({**MODULES, "m.q_proj": ManifestModule(4, 2.5)}, TENSORS),
        Manifest({**MODULES, "m.q_proj": ManifestModule(5, 2.0)}, TENSORS),
        Manifest({"m.q_proj": MODULES["m.q_proj"]}, TENSORS),
        Manifest(MODULES, {**TENSORS, "m.q_proj.A": ManifestTensor("F32", (4, 16), "c" * 64)}),
        Manifest(MODULES, {**TENSORS, "m.q_proj.A": ManifestTensor("F16", (4, 16), "a" * 64)}),
        Manifest(MODULES, {**TENSORS, "m.q_proj.A": ManifestTensor("F32", (16, 4), "a" * 64)}),
        Manifest(MODULES, {**TENSORS, "m.x.A": TENSORS["m.q_proj.A"]}),
    ],
)
def test_whatever_changes_the_arithmetic_changes_the_digest(other):
    assert other.digest != MANIFEST.digest


def test_a_whole_scale_is_the_same_number():
    assert Manifest({"m": ManifestModule(4, 2)}, {}).digest == (
        Manifest({"m": ManifestModule(4, 2.0)}, {}).digest
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"null", b'{"format": 2}', b'{"format": 1}', b'{"format":1,"modules":3}']
    + [json.dumps({"format": 1, "modules": {"m": {}}, "tensors": {}}).encode(), b"\xff"],
)
def test_anything_else_is_a_value_error(data):
    with pytest.raises(ValueError):
        Manifest.from_bytes(data)

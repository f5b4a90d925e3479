"""Every tensor is applied, dropped by a named rule, or an error. Cases from the field by name."""

from __future__ import annotations

import pytest
import torch

from engine.adapters.naming import lora_part
from engine.errors import AdapterRejected
from tests.support.inspected import look
from tests.support.peft_folders import lora_tensors, module_names, write_base

P = "base_model.model."
Q0 = f"{P}model.layers.0.self_attn.q_proj"


def renamed(tensors, old, new, only=lambda name: True):
    return {(n.replace(old, new, 1) if only(n) else n): t for n, t in tensors.items()}


def test_a_plain_adapter_is_applied_whole(spec):
    found = look(spec, lora_tensors(spec))
    assert set(found.modules) == set(module_names(spec))
    assert found.ranks == (4,) and found.warnings == () and not found.copies
    assert found.kinds == (
        "model.layers.*.self_attn.q_proj",
        "model.layers.*.self_attn.v_proj",
    )
    assert all((s.rank, s.scale, s.has_bias) == (4, 2.0, False) for s in found.shapes.values())


@pytest.mark.parametrize("name", ["lora_A.default.weight", "lora_A.weight"])
def test_the_name_of_peft_s_adapter_is_no_part_of_a_tensor_s(name):
    part = lora_part(f"{Q0}.{name}")
    assert (part.module, part.which) == ("model.layers.0.self_attn.q_proj", "A")


@pytest.mark.parametrize(
    "name", ["x", "lora_A.weight", f"{P}lora_A.weight", f"{Q0}.lora_A", f"{Q0}.lora_A.bias"]
)
def test_other_names_are_no_parts(name):
    assert lora_part(name) is None


def test_two_tensors_for_one_part_are_an_error(spec):
    tensors = lora_tensors(spec)
    tensors[f"{Q0}.lora_A.default.weight"] = tensors[f"{Q0}.lora_A.weight"].clone()
    with pytest.raises(AdapterRejected, match="same weight"):
        look(spec, tensors)


# A-NOOP-PREFIX
WRONG = {
    "a wrapper": (f"{P}model.", f"{P}model.language_model.", "language_model"),
    "one model. missing": (f"{P}model.", P, rf"{P}layers"),
    "another name": ("self_attn", "attention", r"\.attention\."),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("half", [False, True])
def test_a_wrong_prefix_is_rejected_with_both_names(spec, case, half):
    """A-NOOP-PREFIX (a), (c), and (d): half of the layers so renamed."""
    old, new, found = WRONG[case]
    tensors = renamed(lora_tensors(spec), old, new, lambda n: not half or ".layers.2." in n)
    wanted = rf"{found}.*names here look like '{P}model\.layers\.0\.self_attn\.q_proj"
    with pytest.raises(AdapterRejected, match=wanted):
        look(spec, tensors)


def test_a_prefix_that_some_tensors_lack_is_rejected(spec):
    """A-NOOP-PREFIX (b) and (d)."""
    tensors = renamed(lora_tensors(spec), P, "", lambda n: ".layers.2." in n)
    with pytest.raises(AdapterRejected, match="does not begin with 'base_model.model.'"):
        look(spec, tensors)


def test_a_prefix_that_all_tensors_lack_is_no_matter(spec):
    """A-NOOP-PREFIX (b): every tensor is applied, or it is an error all the same."""
    tensors = renamed(lora_tensors(spec), P, "")
    found, usual = look(spec, tensors), look(spec, lora_tensors(spec))
    assert found.shapes == usual.shapes and found.layout == usual.layout
    applied = {n: u for m, parts in found.modules.items() for n, u in parts.usual(m).items()}
    assert applied == {name: P + name for name in tensors}
    for old, new in (("model.", "model.language_model."), ("model.", ""), ("self_attn", "attn")):
        with pytest.raises(AdapterRejected, match="names here look like"):
            look(spec, renamed(tensors, old, new))
    for extra in ("optimizer.state", "model.layers.0.self_attn.q_proj.lora_C.weight"):
        with pytest.raises(AdapterRejected, match="no rule"):
            look(spec, {**tensors, extra: torch.zeros(2)})
    copy = look(spec, {**tensors, "lm_head.weight": torch.zeros(2)}).copies
    assert copy == {"lm_head.weight": "lm_head.weight"}


def test_a_layer_that_the_base_lacks_is_rejected(spec):
    with pytest.raises(AdapterRejected, match="not in this base"):
        look(spec, renamed(lora_tensors(spec), ".layers.2.", ".layers.3."))


# A-FUSED-SPLIT
FUSED = {"self_attn.qkv_proj": 16 + 2 * 8, "mlp.gate_up_proj": 2 * 24}


@pytest.mark.parametrize("kind", FUSED)
@pytest.mark.parametrize("alone", [True, False])
def test_fused_projections_are_rejected(spec, kind, alone):
    """A-FUSED-SPLIT: alone, and beside modules that fit; the remedy is to split them."""
    name = f"{P}model.layers.0.{kind}"
    tensors = {
        f"{name}.lora_A.weight": torch.randn(4, 16),
        f"{name}.lora_B.weight": torch.randn(FUSED[kind], 4),
    }
    if not alone:
        tensors |= lora_tensors(spec)
    with pytest.raises(AdapterRejected, match=f"{kind}.*split fused projections"):
        look(spec, tensors, target_modules=[kind, "q_proj", "v_proj"])


@pytest.mark.parametrize("module", ["q_proj", "k_proj", "v_proj"])
def test_a_fused_b_under_a_split_name_is_rejected(spec, module):
    """A-FUSED-SPLIT: of a base with grouped queries k and v are narrower than q, and none is all
    three."""
    names = module_names(spec, (f"self_attn.{module}",))
    tensors = lora_tensors(spec, names=names)
    tensors[f"{P}{names[0]}.lora_B.weight"] = torch.randn(16 + 2 * 8, 4)
    with pytest.raises(AdapterRejected, match="has shape"):
        look(spec, tensors, target_modules=[module])


# A-PATTERN-SEMANTICS
def test_ranks_of_tensors_and_patterns_must_agree(spec):
    """A-PATTERN-SEMANTICS."""
    ranks = {n: 8 if ".1." in n else 4 for n in module_names(spec)}
    found = look(spec, lora_tensors(spec, ranks), rank_pattern={r"layers\.1\..*": 8})
    assert found.ranks == (4, 8)
    with pytest.raises(AdapterRejected, match="shape"):
        look(spec, lora_tensors(spec, ranks))
    with pytest.raises(AdapterRejected, match="shape"):
        look(spec, lora_tensors(spec), rank_pattern={"q_proj": 8})


def test_an_unused_pattern_is_a_warning(spec):
    """A-PATTERN-SEMANTICS."""
    found = look(spec, lora_tensors(spec), rank_pattern={"proj": 8}, alpha_pattern={"^q_proj": 1})
    assert len(found.warnings) == 2 and "'proj'" in found.warnings[0]


def test_of_many_unused_patterns_a_record_names_some(spec):
    patterns = {f"nothing_{i}": 8 for i in range(1000)}
    found = look(spec, lora_tensors(spec), rank_pattern=patterns)
    assert len(found.warnings) == 21
    assert found.warnings[-1] == "980 more patterns are not used by any module"


# A-TARGET-FORMS
@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({"target_modules": "all-linear"}, 5),
        ({"target_modules": r".*(q|v)_proj"}, 0),
        ({"target_modules": ["self_attn.q_proj", "v_proj"]}, 0),
        ({"target_modules": ["q_proj", "v_proj", "qkv", "linear_fc1"]}, 0),
        ({"target_modules": ["q_proj", "v_proj", "o_proj"]}, 1),
        ({"target_modules": ["v_proj", "q_proj"]}, 0),
        ({"target_modules": None}, 0),
    ],
)
def test_the_tensors_are_the_truth(spec, changes, warnings):
    """A-TARGET-FORMS."""
    assert len(look(spec, lora_tensors(spec), **changes).warnings) == warnings


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": []},
        {"target_modules": r".*layers\.(1|2)\..*(q|v)_proj"},
        {"exclude_modules": ["v_proj"]},
        {"layers_to_transform": [0, 1]},
        {"modules_to_save": ["v_proj"]},
    ],
)
def test_weights_that_the_config_rules_out_are_rejected(spec, changes):
    """A-TARGET-FORMS: consistently refused."""
    with pytest.raises(AdapterRejected, match="rule out"):
        look(spec, lora_tensors(spec), **changes)


def test_some_layers_only_is_fine_where_the_config_says_so(spec):
    tensors = lora_tensors(spec, names=module_names(spec, layers=[0, 2]))
    assert len(look(spec, tensors, layers_to_transform=[0, 2]).modules) == 4
    with pytest.raises(AdapterRejected, match="incomplete"):
        look(spec, tensors)


# A-EMPTY-ZERO3
def test_an_empty_file_is_rejected_with_the_probable_cause(spec):
    """A-EMPTY-ZERO3 (a)."""
    with pytest.raises(AdapterRejected, match="ZeRO-3"):
        look(spec, {})


def test_tensors_of_shape_0_are_rejected_with_the_probable_cause(spec):
    """A-EMPTY-ZERO3 (b)."""
    tensors = {name: torch.zeros(0) for name in lora_tensors(spec)}
    with pytest.raises(AdapterRejected, match="ZeRO-3"):
        look(spec, tensors)


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_a_missing_half_is_rejected_by_name(spec, part):
    """A-EMPTY-ZERO3 (c)."""
    tensors = lora_tensors(spec)
    del tensors[f"{P}model.layers.1.self_attn.v_proj.{part}.weight"]
    with pytest.raises(AdapterRejected, match=rf"layers\.1\.self_attn\.v_proj\.{part}"):
        look(spec, tensors)


def test_rank_0_is_rejected(spec):
    """A-EMPTY-ZERO3 (f)."""
    with pytest.raises(AdapterRejected):
        look(spec, lora_tensors(spec, 0))


def test_only_foreign_tensors_are_nothing_to_apply(spec):
    with pytest.raises(AdapterRejected, match="nothing to apply"):
        look(spec, {f"{P}lm_head.weight": torch.zeros(40, 16)})


# A-NONFINITE: dtypes
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.int64])
def test_dtypes_that_are_no_floats_of_ours_are_rejected(spec, dtype):
    """A-NONFINITE."""
    tensors = lora_tensors(spec)
    tensors[f"{Q0}.lora_B.weight"] = torch.zeros(16, 4).to(dtype)
    with pytest.raises(AdapterRejected, match="float32, float16 or bfloat16"):
        look(spec, tensors)


@pytest.mark.parametrize("alpha", [0, -8, 1e9])
def test_an_unusual_alpha_is_a_warning(spec, alpha):
    """A-NONFINITE."""
    assert "lora_alpha" in look(spec, lora_tensors(spec), lora_alpha=alpha).warnings[0]


@pytest.mark.parametrize(
    "changes", [{"lora_alpha": 1e308}, {"lora_alpha": -1e40}, {"alpha_pattern": {"q_proj": 1e40}}]
)
def test_a_scale_that_the_adapter_table_cannot_hold_is_rejected(spec, changes):
    """A-NONFINITE."""
    with pytest.raises(AdapterRejected, match="Mend lora_alpha"):
        look(spec, lora_tensors(spec), **changes)


# Shapes, exactly
@pytest.mark.parametrize(
    ("part", "shape"),
    [
        ("lora_A", (16, 4)),
        ("lora_A", (1, 16)),
        ("lora_A", (4, 16, 1)),
        ("lora_A", (4,)),
        ("lora_B", (4, 16)),
        ("lora_B", (8, 4)),
        ("lora_B", (16, 1)),
    ],
)
def test_no_shape_is_broadcast(spec, part, shape):
    """A-FUSED-SPLIT: every shape exactly."""
    tensors = lora_tensors(spec)
    tensors[f"{Q0}.{part}.weight"] = torch.randn(shape)
    with pytest.raises(AdapterRejected, match=rf"q_proj\.{part}\.weight has shape"):
        look(spec, tensors)


# A-TIED-HEAD
@pytest.mark.parametrize("name", ["lm_head", "model.embed_tokens"])
def test_the_head_and_the_embedding_are_modules_of_their_own(spec, name):
    """A-TIED-HEAD."""
    target = name.removeprefix("model.")
    found = look(spec, lora_tensors(spec, names=[name]), target_modules=[target])
    assert set(found.modules) == {name}
    assert found.modules[name].embedding == (name == "model.embed_tokens")


def test_an_embedding_lora_has_its_own_shapes_and_names(spec):
    """A-TIED-HEAD."""
    tensors = lora_tensors(spec, names=["model.embed_tokens"])
    a, b = f"{P}model.embed_tokens.lora_embedding_A", f"{P}model.embed_tokens.lora_embedding_B"
    assert (tensors[a].shape, tensors[b].shape) == ((4, 40), (16, 4))
    for bad in (
        {a: tensors[a].t().contiguous(), b: tensors[b]},
        {a: torch.randn(4, 41), b: tensors[b]},
        {n.replace("lora_embedding_A", "lora_A.weight"): t for n, t in tensors.items()},
        renamed(renamed(tensors, "model.embed_tokens", "lm_head"), "x", "x"),
    ):
        with pytest.raises(AdapterRejected):
            look(spec, bad, target_modules=["embed_tokens", "lm_head"])


def test_tied_adapters_are_refused(spec):
    """A-TIED-HEAD."""
    with pytest.raises(AdapterRejected, match="ensure_weight_tying"):
        look(
            spec,
            lora_tensors(spec, names=["lm_head"]),
            target_modules=["lm_head"],
            ensure_weight_tying=True,
        )
    look(spec, lora_tensors(spec), ensure_weight_tying=True)


def test_grouped_query_attention_gives_k_and_v_their_own_width(tmp_path):
    spec = write_base(tmp_path, num_key_value_heads=1)
    tensors = lora_tensors(spec)
    assert tensors[f"{P}model.layers.0.self_attn.v_proj.lora_B.weight"].shape == (4, 4)
    look(spec, tensors)

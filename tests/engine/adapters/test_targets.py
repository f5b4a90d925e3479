"""Which modules a config adapts: PEFT's own functions are the oracle."""

from __future__ import annotations

import json

import pytest
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists

from engine.adapters.peft import read_config
from engine.adapters.targets import HEADS, resolve
from engine.errors import AdapterRejected
from engine.model.modules import module_table
from tests.support.peft_folders import peft_config

TABLE = module_table(num_layers=12, hidden=8, intermediate=8, q_out=8, kv_out=8, vocab=16)
NAMES = [module.name for module in TABLE.modules]


def targets(**changes):
    return resolve(read_config(json.dumps(peft_config(**changes)).encode()), NAMES)


# A-TARGET-FORMS
@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": ["self_attn.q_proj"]},
        {"target_modules": ["model.layers.1.self_attn.q_proj"]},
        {"target_modules": ["layers.1.self_attn.q_proj"]},
        {"target_modules": ["proj"]},
        {"target_modules": []},
        {"target_modules": ["q_proj", "qkv", "linear_fc1"]},
        {"target_modules": ["lm_head", "embed_tokens"]},
        {"target_modules": r".*layers\.(1|2)\..*(q|v)_proj"},
        {"target_modules": r"(?i).*Q_PROJ"},
        {"target_modules": r"q_proj"},
        {"target_modules": ["q_proj", "up_proj"], "exclude_modules": ["up_proj"]},
        {"target_modules": ["q_proj"], "exclude_modules": r".*\.[0-5]\..*"},
        {"target_modules": ["q_proj"], "exclude_modules": ["layers.3.self_attn.q_proj"]},
        {"target_modules": ["q_proj"], "layers_to_transform": [1, 3]},
        {"target_modules": ["q_proj", "lm_head"], "layers_to_transform": 2},
        {"target_modules": ["q_proj"], "layers_to_transform": []},
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": ["h", "la.*"]},
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": ["blocks"]},
        {"target_modules": ["lm_head", "q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "o_proj"], "modules_to_save": ["self_attn"]},
    ],
    ids=str,
)
def test_it_adapts_what_peft_adapts(changes):
    """A-TARGET-FORMS."""
    config = LoraConfig(r=4, **changes)
    wanted = [bool(check_target_module_exists(config, name)) for name in NAMES]
    found = targets(**changes)
    assert [found.modules[name].adapted for name in NAMES] == wanted


@pytest.mark.parametrize("value", ["all-linear", "All-Linear"])
def test_all_linear_is_all_but_embedding_and_head(value):
    found = targets(target_modules=value)
    assert [n for n in NAMES if not found.modules[n].adapted] == sorted(HEADS, reverse=True)


def test_a_config_that_names_no_targets_adapts_what_there_is():
    assert all(t.adapted for t in targets(target_modules=None).modules.values())


# A-PATTERN-SEMANTICS
def test_patterns_give_each_module_its_rank_and_alpha():
    """A-PATTERN-SEMANTICS."""
    key = r".*\.layers\.3\..*(q_proj|v_proj)"
    found = targets(r=8, lora_alpha=16, rank_pattern={key: 32}, alpha_pattern={key: 128})
    third, first = (found.modules[f"model.layers.{n}.self_attn.q_proj"] for n in (3, 1))
    assert (third.rank, third.alpha, third.scale) == (32, 128.0, 4.0)
    assert (first.rank, first.alpha, first.scale) == (8, 16.0, 2.0)
    assert found.modules["model.layers.3.self_attn.k_proj"].rank == 8


def test_a_layer_number_is_whole():
    found = targets(rank_pattern={"layers.1.self_attn.q_proj": 32})
    assert found.modules["model.layers.1.self_attn.q_proj"].rank == 32
    assert found.modules["model.layers.11.self_attn.q_proj"].rank == 4


def test_alpha_may_have_patterns_of_its_own_and_rslora_too():
    found = targets(alpha_pattern={"q_proj": 32}, rank_pattern={"v_proj": 16}, use_rslora=True)
    assert found.modules["model.layers.0.self_attn.q_proj"].scale == 32 / 2
    assert found.modules["model.layers.0.self_attn.v_proj"].scale == 8 / 4


def test_the_first_pattern_counts():
    found = targets(rank_pattern={"self_attn.q_proj": 16, "q_proj": 32})
    assert found.modules["model.layers.0.self_attn.q_proj"].rank == 16
    assert found.unmatched == ("q_proj",)


@pytest.mark.parametrize("key", ["proj", "^q_proj", "q_prj", "model.q_proj"])
def test_a_pattern_that_matches_nothing_is_told(key):
    found = targets(rank_pattern={key: 32})
    assert found.unmatched == (key,)
    assert all(t.rank == 4 for t in found.modules.values())


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_a_pattern_that_cannot_be_evaluated_is_rejected(key):
    with pytest.raises(AdapterRejected, match="not a regular expression"):
        targets(**{key: {"(q_proj": 8}})

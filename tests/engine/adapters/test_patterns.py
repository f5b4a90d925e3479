from __future__ import annotations

import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peft.utils.other import get_pattern_key

from engine.adapters.patterns import SUFFIX, PatternError, Search, search

NAMES = [f"model.layers.{n}.self_attn.{p}_proj" for n in (0, 1, 3, 11) for p in "qkvo"]
NAMES += ["model.layers.1.mlp.gate_proj", "model.embed_tokens", "lm_head", "xlm_head"]


def suffix(patterns, names=NAMES):
    return [hit and hit[0] for hit in search([Search(tuple(patterns), *SUFFIX)], names)[0]]


def by_peft(patterns, names=NAMES):
    keys = [get_pattern_key(patterns, name) for name in names]
    return [patterns.index(key) if key in patterns else None for key in keys]


# A-PATTERN-SEMANTICS
@pytest.mark.parametrize(
    "patterns",
    [
        [r".*\.layers\.3\..*(q_proj|v_proj)"],
        ["q_proj"],
        ["layers.1.self_attn.q_proj"],
        ["proj"],
        ["^q_proj"],
        ["^model.layers.3.self_attn.q_proj"],
        ["lm_head"],
        ["q.proj", "q_proj"],
        ["q_proj", r"layers\.1\..*", ".*"],
        ["q_proj|v_proj"],
        [r"self_attn\.[qk]_proj$"],
        [""],
        ["(q)_proj", r"\1"],
        ["layers.[13].self_attn.(q|o)_proj", "o_proj"],
    ],
    ids=str,
)
def test_it_matches_as_peft_does(patterns):
    """A-PATTERN-SEMANTICS."""
    assert suffix(patterns) == by_peft(patterns)


@given(st.lists(st.sampled_from(["q_proj", "proj", ".", "1.", "layers.1", "m", "lm_head", ".q"])))
def test_plain_names_match_as_peft_does(pieces):
    patterns = ["".join(pieces), "_".join(pieces)]
    assert suffix(patterns) == by_peft(patterns)


@settings(max_examples=10)
@given(st.lists(st.from_regex(r"(layers|self_attn|[qk]_proj|\.\*|\\\.|\d){1,4}", fullmatch=True)))
def test_expressions_match_as_peft_does(patterns):
    patterns = list(dict.fromkeys(patterns))
    assert suffix(patterns) == by_peft(patterns)


def test_searches_answer_in_order_with_their_groups():
    layer = Search((r".*?\.[^.]*\.(?P<idx>\d+)\.",))
    whole = Search((r".*\.(?i:Q)_proj",), whole=True)
    none, numbers, wholes, plain = search(
        [Search(()), layer, whole, Search(("k_proj",), *SUFFIX)], NAMES
    )
    assert none == [None] * len(NAMES)
    assert [hit and hit[1] for hit in numbers[:5]] == ["0", "0", "0", "0", "1"]
    assert [hit is not None for hit in wholes[:4]] == [True, False, False, False]
    assert [hit is not None for hit in plain[:4]] == [False, True, False, False]


def test_a_pattern_that_backtracks_for_ever_is_stopped():
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(PatternError, match="took more than 1 s"):
        search([Search(("(([a-z._0-9])+)+$!",), *SUFFIX)], NAMES, max_cpu_s=1)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 3


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?P<idx", "*a", "a" * 5000, "a" * 4000 + "("])
def test_what_is_no_expression_is_said_to_be_none(pattern):
    with pytest.raises(PatternError):
        search([Search((pattern,), *SUFFIX)], NAMES)


def test_there_is_a_bound_on_their_number():
    with pytest.raises(PatternError, match="20001"):
        search([Search(tuple(map(str, range(20_001))), *SUFFIX)], NAMES)


def test_many_plain_names_need_no_child():
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    patterns = [f"model.layers.{n}.self_attn.q_proj" for n in range(500)]
    assert suffix(patterns)[:2] == [0, None]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime == before

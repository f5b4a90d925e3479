"""Pieces of text add up to the tokenizer's own decode of the whole, and are whole characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from deployments.replica.detokenise import Detokeniser, UnknownDecoder, Vocabulary

SENTENCES = [
    "Hello, world. 你好世界。",
    "naïve café 👩‍👩‍👧 🇩🇪",
    "日本語のテキスト、テスト。",
    "a\n\nb  c",
]


def byte_level() -> Tokenizer:
    """As Llama 3, Qwen and SmolLM2 have it; tokens end inside characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False), AddedToken("工具", special=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2 has it: characters that it doesn't know are `<0xNN>` tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += ["▁", "▁▁", "a", "b", "▁a", "▁the", "日", "。", "\n"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(SENTENCES)


def pieces(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    """The text of each group of tokens, and what is left at the end."""
    detokeniser = Detokeniser(Vocabulary.of(tokenizer))
    out, start = [], 0
    for cut in [*sorted(c % (len(ids) + 1) for c in cuts), len(ids)]:
        out.append(detokeniser.feed(ids[start:cut]))
        start = cut
    return [*out, detokeniser.finish()]


def whole(tokenizer: Tokenizer, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


@given(
    st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 3), max_size=20), st.lists(st.integers(0))
)
def test_byte_level_equals_the_whole_decode_of_any_ids(ids: list[int], cuts: list[int]) -> None:
    assert "".join(pieces(BYTE_LEVEL, ids, cuts)) == whole(BYTE_LEVEL, ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["level", "fallback"])
@given(text=TEXT)
def test_text_comes_in_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    detokeniser = Detokeniser(Vocabulary.of(tokenizer))
    came = ""
    for token in ids:
        came += detokeniser.feed([token])
        if "�" not in text:
            assert "�" not in came
    assert came + detokeniser.finish() == whole(tokenizer, ids)


@given(st.lists(TEXT | st.sampled_from(["<s>", "</s>"]), max_size=6), st.lists(st.integers(0)))
def test_byte_fallback_equals_the_whole_decode_of_any_text(
    texts: list[str], cuts: list[int]
) -> None:
    """With special tokens anywhere: they are skipped before bytes are joined."""
    ids = [i for t in texts for i in BYTE_FALLBACK.encode(t, add_special_tokens=False).ids]
    assert "".join(pieces(BYTE_FALLBACK, ids, cuts)) == whole(BYTE_FALLBACK, ids)


@given(st.lists(st.integers(0, BYTE_FALLBACK.get_vocab_size() + 3), max_size=20))
def test_byte_fallback_of_any_ids_replaces_only_what_is_no_character(ids: list[int]) -> None:
    ours = "".join(pieces(BYTE_FALLBACK, ids, []))
    theirs = whole(BYTE_FALLBACK, ids)
    if "�" not in theirs:
        assert ours == theirs
    else:
        # They give up a whole run of bytes for one bad one; nothing else differs.
        assert "�" in ours
        assert len(ours.replace("�", "")) >= len(theirs.replace("�", ""))


def test_a_character_in_parts_waits_for_its_last_byte() -> None:
    ids = [BYTE_FALLBACK.token_to_id(f"<0x{b:02X}>") for b in "好a".encode()]
    detokeniser = Detokeniser(Vocabulary.of(BYTE_FALLBACK))
    assert [detokeniser.feed([i]) for i in ids] == ["", "", "好", "a"]
    assert detokeniser.feed(ids[:2]) == "" and detokeniser.finish() == "�"


def test_leading_space_goes_once_wherever_the_text_starts() -> None:
    a, s = BYTE_FALLBACK.token_to_id("▁a"), BYTE_FALLBACK.token_to_id("<s>")
    assert pieces(BYTE_FALLBACK, [s, a, a], [1, 2]) == ["", "a", " a", ""]


def test_unknown_decoder_is_refused_by_name() -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnknownDecoder, match="WordPiece"):
        Vocabulary.of(tokenizer)

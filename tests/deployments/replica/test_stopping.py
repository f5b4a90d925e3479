"""Stop strings: nothing of one leaks, nothing else is swallowed, pieces don't matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.replica.stopping import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    held = StopStrings(stops)
    out = [held.feed(piece) for piece in pieces]
    if not held.matched:
        out.append(held.finish())
    return out, held.matched


def plain(stops: list[str], text: str) -> tuple[str, bool]:
    """The oracle: look at the text character by character."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


CASES = [
    pytest.param(["DEFGHIJ"], ["ABC", "DE", "FGH", "IJK"], ["ABC", "", "", ""], True, id="spans"),
    pytest.param(["\n\n"], ["a", ".\n\n", "b"], ["a", ".", ""], True, id="inside-a-token"),
    pytest.param(["\n\n"], ["a\n", "\nb"], ["a", ""], True, id="half-and-half"),
    pytest.param(["ab", "abc"], ["xa", "bc"], ["x", ""], True, id="prefix-of-the-other"),
    pytest.param(["abc", "ab"], ["xa", "bc"], ["x", ""], True, id="prefix-of-the-other-reversed"),
    pytest.param(["abcd", "bc"], ["xab", "cd"], ["x", "a"], True, id="complete-first-wins"),
    pytest.param(["abc", "bc"], ["xab", "c"], ["x", ""], True, id="together-earliest-start"),
    pytest.param(["。"], ["好", "。", "吗"], ["好", "", ""], True, id="multibyte"),
    pytest.param(["STOP"], ["a ST", "O"], ["a ", "", "STO"], False, id="held-then-released-at-end"),
    pytest.param(["STOP"], ["a ST", "ART"], ["a ", "START", ""], False, id="impossible-released"),
    pytest.param(["aab"], ["aa", "aab"], ["", "aa"], True, id="overlapping-start"),
    pytest.param([], ["a", "b"], ["a", "b", ""], False, id="none"),
]


@pytest.mark.parametrize(("stops", "pieces", "released", "matched"), CASES)
def test_cases(stops: list[str], pieces: list[str], released: list[str], matched: bool) -> None:
    assert run(stops, pieces) == (released, matched)


@given(
    st.lists(st.text("ab。", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("ab。", max_size=3), max_size=12),
)
def test_same_as_character_by_character(stops: list[str], pieces: list[str]) -> None:
    released, matched = run(stops, pieces)
    assert ("".join(released), matched) == plain(stops, "".join(pieces))


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=12),
)
def test_holds_no_more_than_it_must(stops: list[str], pieces: list[str]) -> None:
    """What is held could become a stop string; a character more could not."""
    held = StopStrings(stops)
    text = released = ""
    for piece in pieces:
        text += piece
        released += held.feed(piece)
        if held.matched:
            return
        kept = text[len(released) :]
        assert text.startswith(released)
        assert not kept or any(s.startswith(kept) and s != kept for s in stops)
        for longer in range(len(kept) + 1, len(text) + 1):
            assert not any(s.startswith(text[-longer:]) for s in stops)


def test_nothing_comes_after_a_match() -> None:
    held = StopStrings(["x"])
    assert held.feed("ax") == "a"
    assert held.feed("more") == "" and held.finish() == ""

"""Events of a stream: every token counted once, text up to a stop string, usage at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.replica.detokenise import Vocabulary
from deployments.replica.streams import Event, Stream, join
from engine.errors import ErrorInfo
from engine.messages import SequenceOutput
from engine.types import FinishReason, Request, Tenant

LETTERS = Vocabulary({i: bytes([i]) for i in range(256)})


def stream(*, stop: tuple[str, ...] = (), prompt: int = 3) -> Stream:
    request = Request("r", Tenant("acme"), None, tuple(range(prompt)), 64, stop=stop)
    return Stream(0, request, LETTERS)


def output(
    text: str | bytes, finish: FinishReason | None = None, *, num_cached: int = 0
) -> SequenceOutput:
    tokens = tuple(text.encode() if isinstance(text, str) else text)
    return SequenceOutput("r", tokens, finish, num_cached=num_cached)


def feed(target: Stream, *outputs: SequenceOutput) -> list[Event]:
    return [event for part in outputs if (event := target.feed(part)) is not None]


def test_text_and_usage() -> None:
    target = stream()
    events = feed(target, output("ab", num_cached=2), output("c"), output("", FinishReason.LENGTH))
    assert events == [
        {"i": 0, "text": "ab", "tokens": 2},
        {"i": 0, "text": "c", "tokens": 1},
        {
            "i": 0,
            "text": "",
            "tokens": 0,
            "finish": "length",
            "prompt_tokens": 3,
            "cached_tokens": 2,
            "completion_tokens": 3,
        },
    ]
    assert target.done and not target.stopped


def test_no_event_while_no_text_is_certain() -> None:
    target = stream(stop=("。",))
    assert feed(target, output("好".encode()[:2])) == []
    assert feed(target, output("好".encode()[2:])) == [{"i": 0, "text": "好", "tokens": 3}]
    assert feed(target, output("。".encode()[:2])) == []
    (last,) = feed(target, output("。".encode()[2:]))
    assert (last["text"], last["finish"], last["completion_tokens"]) == ("", "stop", 6)
    assert target.done and target.stopped


def test_held_text_is_released_at_the_end() -> None:
    target = stream(stop=("STOP",))
    first, last = feed(target, output("a STO"), output("", FinishReason.STOP))
    assert (first["text"], last["text"]) == ("a ", "STO")
    assert last["finish"] == "stop" and not target.stopped


def test_tokens_after_a_stop_string_do_not_count() -> None:
    target = stream(stop=("x",))
    (last,) = feed(target, output("abxcd"))
    assert (last["text"], last["completion_tokens"], last["tokens"]) == ("ab", 3, 3)


def test_a_stop_string_that_ends_with_the_sequence_needs_no_abort() -> None:
    target = stream(stop=("x",))
    (last,) = feed(target, output("ax", FinishReason.LENGTH))
    assert last["finish"] == "stop" and not target.stopped


def test_character_cut_off_at_the_end_is_replaced() -> None:
    (last,) = feed(stream(), output("好".encode()[:2], FinishReason.LENGTH))
    assert last["text"] == "�"


def test_error_ends_the_stream() -> None:
    target = stream()
    info = ErrorInfo(503, "adapter_unavailable", "gone", retry_after_s=2.0)
    event = target.feed(SequenceOutput("r", (), FinishReason.ERROR, info))
    assert event == {
        "i": 0,
        "error": {
            "status": 503,
            "code": "adapter_unavailable",
            "message": "gone",
            "retry_after_s": 2.0,
            "public": None,
        },
    }
    assert target.done


@given(
    st.text("abxy", max_size=20),
    st.lists(st.integers(1, 20), max_size=6),
    st.sampled_from([(), ("x",), ("xy", "xyx"), ("aa", "b")]),
)
def test_streamed_and_whole_answers_are_equal(
    text: str, cuts: list[int], stop: tuple[str, ...]
) -> None:
    one, many = stream(stop=stop), stream(stop=stop)
    (whole,) = feed(one, output(text, FinishReason.LENGTH))
    events, start = [], 0
    for cut in [*sorted({c for c in cuts if c < len(text)}), len(text)]:
        if not many.done:
            events += feed(many, output(text[start:cut]))
        start = cut
    if not many.done:
        events += feed(many, output("", FinishReason.LENGTH))
    assert "".join(e["text"] for e in events) == whole["text"]
    assert sum(e["tokens"] for e in events) == whole["completion_tokens"]
    assert join(events) == [whole]
    assert all(e["text"] or "finish" in e for e in events)


def test_join_keeps_streams_and_errors_apart() -> None:
    events = [
        {"i": 1, "text": "a", "tokens": 1},
        {"i": 0, "text": "b", "tokens": 1},
        {"i": 1, "text": "c", "tokens": 2},
        {"i": 1, "error": {"status": 503}},
    ]
    assert join(events) == [
        {"i": 1, "text": "ac", "tokens": 3},
        {"i": 0, "text": "b", "tokens": 1},
        {"i": 1, "error": {"status": 503}},
    ]


@pytest.mark.parametrize("events", [[], [{"i": 0, "text": "", "tokens": 0, "finish": "stop"}]])
def test_join_of_little(events: list[Event]) -> None:
    assert join(events) == events

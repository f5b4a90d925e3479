"""Events are the same whatever pieces the bytes come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.sse import EventParser

LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
TEXT = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)


def parsed(data: bytes, cuts: list[int]) -> list[bytes]:
    parser, events, begin = EventParser(), [], 0
    for cut in sorted({min(c, len(data)) for c in cuts} | {len(data)}):
        events += parser.feed(data[begin:cut])
        begin = cut
    return events


@given(
    events=st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=5),
    end=LINE_ENDS,
    space=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_any_pieces_give_the_same_events(
    events: list[list[str]], end: bytes, space: bool, cuts: list[int]
) -> None:
    # Without the space that may follow the colon, one of the value's own would be taken for it.
    lines = [[line if space else line.lstrip(" ") for line in event] for event in events]
    data = b"".join(
        b"".join(b"data:" + b" " * space + line.encode() + end for line in event) + end
        for event in lines
    )
    assert parsed(data, cuts) == ["\n".join(event).encode() for event in lines]


def test_other_fields_and_comments_are_read_past() -> None:
    data = b": hello\nevent: x\nid: 3\nretry: 5\ndata: one\n\n\n\nevent: y\n\ndata\ndata:two\n\n"
    assert parsed(data, []) == [b"one", b"two"]


def test_an_event_without_its_end_is_none() -> None:
    assert parsed(b"data: one\n\ndata: two\n", []) == [b"one"]

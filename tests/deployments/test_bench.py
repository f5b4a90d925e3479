"""What the benchmarks make of what they saw."""

from __future__ import annotations

import json

from deployments.bench.isolation import Steps
from deployments.bench.streams import Received, Setting, report
from engine.messages import Output, SequenceOutput


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def test_a_token_counts_when_its_event_is_complete() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1a\r\n"
    first, second = event("<7>"), event("<8><9>") + b"data: [DONE]\n\n"
    client = Received("s", [(1.0, head + first[:9]), (2.0, first[9:]), (3.0, b"\r\n" + second)])
    assert list(client.tokens()) == [(2.0, "<7>"), (3.0, "<8>"), (3.0, "<9>")]


def test_report_pairs_tokens_with_when_they_left_the_core() -> None:
    received = [
        Received("s0", [(10.5, event("<1>")), (11.0, event("<2>"))]),
        Received("s1", [(10.5, event("<1>")), (12.0, event("<3>"))]),
    ]
    trace = ["0-0:s0.word-0 10.25", "1-0:s1.word-0 10.25", "0-0:s0.word-0 10.5", "1-0:s1.w-0 10.5"]
    said = report(received, trace, Setting(num_streams=2, num_tokens=2))
    assert said["tokens_received"] == 4
    assert not said["every_token_in_order"]  # s1 lost <2>
    assert (said["delay_p50_s"], said["delay_max_s"]) == (0.5, 1.5)


def test_steps_are_the_gaps_between_outputs_with_tokens() -> None:
    steps = Steps()
    for at_s, tokens in ((1.0, (1,)), (2.0, ()), (4.0, (2,)), (5.0, (3,))):
        parts = (SequenceOutput("r", tokens),) if tokens else ()
        steps.see(Output(parts, at_s=at_s))
    assert steps.take() == [1.0, 3.0]
    assert steps.take() == []

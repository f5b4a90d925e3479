"""However events come in, a stream and a whole answer say the same."""

import json

from hypothesis import given
from hypothesis import strategies as st

from deployments.rest.answers import DONE, Answer, AnswerHead, error_body, error_chunk, error_of
from engine.errors import ErrorInfo


@st.composite
def runs(draw):
    """(head fields, number of sequences, batches of events as a replica could send them)."""
    n = draw(st.integers(1, 3))
    num = n * draw(st.integers(1, 3))
    queues = []
    for i in range(num):
        texts = draw(st.lists(st.text(max_size=5), max_size=4))
        events = [{"i": i, "text": t, "tokens": 1} for t in texts]
        end = {"i": i, "text": draw(st.text(max_size=3)), "tokens": 1}
        end["finish"] = draw(st.sampled_from(["stop", "length"]))
        end["prompt_tokens"] = 10 * (i // n + 1)
        end["cached_tokens"] = draw(st.integers(0, 3))
        end["completion_tokens"] = draw(st.integers(0, 9))
        queues.append([*events, end])
    batches = []
    while any(queues):
        ready = [q for q in queues if q]
        chosen = draw(st.lists(st.sampled_from(range(len(ready))), min_size=1, unique=True))
        batches.append([ready[k].pop(0) for k in chosen])
    return n, num, batches


def answer(n, num, *, chat=True, with_usage=False):
    head = AnswerHead("id-1", 5, "t1/bot", "fp_1", chat, n, with_usage)
    return Answer(head, num)


@given(runs(), st.booleans(), st.booleans())
def test_stream_and_whole_agree(run, chat, with_usage):
    n, num, batches = run
    whole, streamed = answer(n, num, chat=chat), answer(n, num, chat=chat, with_usage=with_usage)
    raw = b""
    for batch in batches:
        whole.add(batch)
        raw += streamed.chunks(batch)
    assert whole.finished
    assert streamed.finished
    raw += streamed.ending()
    assert raw.endswith(DONE)
    lines = raw.decode().split("\n\n")[:-2]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    if with_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"] == whole.usage()
    said, finishes = dict.fromkeys(range(num), ""), {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        index = choice["index"]
        assert index not in finishes, "nothing comes after the finish"
        said[index] += (choice["delta"].get("content", "") if chat else choice["text"]) or ""
        if choice["finish_reason"]:
            finishes[index] = choice["finish_reason"]
    for choice in whole.whole()["choices"]:
        text = choice["message"]["content"] if chat else choice["text"]
        assert said[choice["index"]] == text
        assert finishes[choice["index"]] == choice["finish_reason"]


@given(runs())
def test_usage_adds_up(run):
    n, num, batches = run
    whole = answer(n, num)
    for batch in batches:
        whole.add(batch)
    ends = [e for batch in batches for e in batch if "finish" in e]
    usage = whole.usage()
    assert usage["completion_tokens"] == sum(e["completion_tokens"] for e in ends)
    assert usage["prompt_tokens"] == sum(10 * (k + 1) for k in range(num // n))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_errors_keep_status_code_and_words():
    fields = {"status": 422, "code": "adapter_rejected", "message": "no", "retry_after_s": 2.0}
    info = error_of(fields).info()
    assert info == ErrorInfo(422, "adapter_rejected", "no", None, 2.0)
    assert error_body(info)["error"]["type"] == "invalid_request_error"
    assert error_body(ErrorInfo(503, "x", "y"))["error"]["type"] == "server_error"
    assert error_chunk(info).startswith(b'data: {"error":')

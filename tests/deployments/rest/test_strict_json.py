"""What is JSON in general and not here: text in another encoding, halves of pairs, fields twice."""

from __future__ import annotations

import json

import pytest

from deployments.rest.strict_json import decode_json
from engine.errors import InvalidRequest
from tests.support.ingress import error_of


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_another_encoding_is_refused_with_the_remedy(encoding: str) -> None:
    body = json.dumps({"prompt": "\xe9"}, ensure_ascii=False).encode(encoding)
    with pytest.raises(InvalidRequest, match="Send the JSON in UTF-8") as caught:
        decode_json(body)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"b": [{"c": {"d": 1, "e": 2, "d": 3}}]}', "d"),
        (rb'{"\ud800": 1, "\ud800": 2}', "?"),
        (rb'{"a": 1, "\u0061": 2}', "a"),
    ],
)
def test_a_field_that_is_there_twice_is_named(body: bytes, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is there twice") as caught:
        decode_json(body)
    assert caught.value.param == name


@pytest.mark.parametrize("body", [rb'"\ud800"', rb'{"\uDFFF": 1}', rb'[["\ud800\u0041"]]'])
def test_half_a_pair_is_no_text(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        decode_json(body)


def test_what_is_text_stays_as_it_is() -> None:
    value = {"a": "\U0001f600\ufffd\0", "b": [{"a": 1}, {"a": 1}], "c": "\\ud800"}
    assert decode_json(json.dumps(value).encode()) == value
    marked = b"\xef\xbb\xbf" + json.dumps(value, ensure_ascii=False).encode()
    assert decode_json(marked) == value


async def test_bytes_of_half_a_pair_are_refused_by_every_endpoint(client, world):
    half = b"\xed\xa0\x80"
    messages = b'{"model": "t1/bot", "messages": [{"role": "user", "content": "' + half + b'"}]}'
    prompt = b'{"model": "t1/bot", "prompt": "' + half + b'"}'
    admin = {"authorization": f"Bearer {world.keys['admin']}"}
    publish = b'{"tenant": "t1", "name": "n", "probes": [{"prompt": "' + half + b'"}]}'
    for path, content, headers in (
        ("/v1/chat/completions", messages, {}),
        ("/v1/completions", prompt, {}),
        ("/v1/adapters", publish, admin),
    ):
        error = error_of(await client.post(path, content=content, headers=headers), 400)
        assert error["code"] == "invalid_json" and "UTF-8" in error["message"]
    assert world.model.calls == [] and world.control.orders == []

"""What is wrong with a value is said in words that need no knowledge of Python or pydantic."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deployments.config import load
from deployments.config_file import ConfigError
from deployments.rest.openai_protocol import ChatBody, CompletionBody
from deployments.rest.openai_protocol import parse as parse_openai
from deployments.rest.rest_bodies import (
    PrefetchBody,
    PromoteBody,
    PublishBody,
    TenantBody,
    parse,
    parse_form,
)
from engine.errors import InvalidRequest

FOREIGN = re.compile(r"Input|literal|pydantic|NoneType|\b(int|str|bool|float|dict|Body|Section)\b")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "m", "prompt": "x"}


@pytest.mark.parametrize(
    ("body_type", "values", "said"),
    [
        (PublishBody, {}, "name: is needed."),
        (PublishBody, {"name": 7}, "name: must be a string."),
        (PublishBody, {"name": "x", "folder": ""}, "folder: must not be empty."),
        (PublishBody, {"name": "x", "weight": 2}, "weight: must be 1 or less."),
        (PublishBody, {"name": "x", "weight": "x"}, "weight: must be a number."),
        (PublishBody, {"name": "x", "promote": 1}, "promote: must be true or false."),
        (PublishBody, {"name": "x", "probes": {}}, "probes: must be a list."),
        (PublishBody, {"name": "x", "probes": [1]}, "probes.0: must be an object."),
        (PublishBody, {"name": "x", "probes": [{}]}, "probes.0.prompt: is needed."),
        (
            PublishBody,
            {"name": "x", "probes": [{"prompt": "x", "y": 1}]},
            "probes.0.y: is not known; here may be: prompt, max_tokens, expect.",
        ),
        (PromoteBody, {"version": "x" * 65}, "version: must have at most 64 characters."),
        (PromoteBody, {"version": "x", "expect": "x"}, "expect: must have at least 8 characters."),
        (TenantBody, {"id": "x", "max_rank": 1.5}, "max_rank: must be a whole number."),
        (TenantBody, {"id": "x", "max_queued": 0}, "max_queued: must be 1 or more."),
        (TenantBody, {"id": "x", "max_queued": None}, "max_queued: must be a whole number."),
        (TenantBody, {"id": "x", "soft_kv_share": 0}, "soft_kv_share: must be more than 0."),
        (TenantBody, {"id": "x", "weight": float("inf")}, "weight: must be a finite number."),
        (
            TenantBody,
            {"id": "x", "allowed_ranks": [8] * 65},
            "allowed_ranks: must have at most 64 items.",
        ),
        (PrefetchBody, {"tier": "disk"}, "tier: must be 'host' or 'device'."),
        (
            PrefetchBody,
            {"replicas": 0},
            "replicas: must be owner, all, or a number of replicas above 0.",
        ),
    ],
)
def test_bodies(body_type: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse(body_type, values)
    assert raised.value.message == said
    assert raised.value.param == said.partition(":")[0]


@pytest.mark.parametrize("wrong", [None, "x", 7, 1.5, -1, [], [{}], {}, True, [7, "x"], "9" * 5000])
@pytest.mark.parametrize("field", sorted({*ChatBody.model_fields, *CompletionBody.model_fields}))
def test_requests(field: str, wrong: Any) -> None:
    """Whatever is refused is refused in our words, and by the name of the field."""
    for body_type, values in ((ChatBody, CHAT), (CompletionBody, TEXT)):
        try:
            parse_openai(body_type, {**values, field: wrong})
        except InvalidRequest as error:
            assert not FOREIGN.search(error.message.replace(str(wrong), "")), error.message
            assert error.param is not None and field.startswith(error.param.partition(".")[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nosuch": 1}, r"nosuch: is not known; here may be: .*\bbase, .*\breplica"),
        ({"base": {"path": "x"}}, "base.name: is needed."),
        ({"base": 7}, "base: must be an object."),
        (
            {"replica": {"device": "tpu"}},
            "replica.device: must be 'cpu', 'cuda', 'fake' or 'auto'.",
        ),
        ({"replica": {"memory": {"arena_bytes": "much"}}}, "arena_bytes: must be a whole number"),
        ({"replica": {"accounts": {"nosuch": 1}}}, "accounts.nosuch: is not known; .*local_floor"),
        ({"replica": {"accounts": {"local_floor": 2}}}, "replica: local_floor must be <= 1"),
    ],
)
def test_configurations(changes: dict[str, Any], said: str) -> None:
    values = {"data_dir": "d", "base": {"path": "m", "name": "n"}, **changes}
    with pytest.raises(ConfigError, match=said) as raised:
        load(values, environ={})
    assert not FOREIGN.search(raised.value.message)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, r"a.yaml can't be read: No such file or directory\."),
        (b"\xff\xfe\x00", r"a.yaml can't be read: it is no text in UTF-8\."),
        (b"a: [1\n", r"a.yaml is not YAML at line 2, column 1: expected ',' or ']'"),
        (b"- 1", "a.yaml is not a mapping of keys to values"),
    ],
)
def test_files(tmp_path: Path, data: bytes | None, said: str) -> None:
    if data is not None:
        (tmp_path / "a.yaml").write_bytes(data)
    with pytest.raises(ConfigError, match=said) as raised:
        load(tmp_path / "a.yaml", environ={})
    assert "\n" not in raised.value.message


PUBLISH = {
    "tenant": "true",
    "name": "7",
    "folder": "[]",
    "prefix": "null",
    "base": "{}",
    "as": "1.5",
    "weight": 0.25,
    "gate": False,
    "promote": False,
    "probes": [{"prompt": "x", "max_tokens": 3}],
}
"""Every field; texts that read like JSON."""


def test_a_form_says_every_field_as_json_does() -> None:
    assert set(PUBLISH) == {f.alias or n for n, f in PublishBody.model_fields.items()}
    form = {k: v if isinstance(v, str) else json.dumps(v) for k, v in PUBLISH.items()}
    assert parse_form(PublishBody, form) == parse(PublishBody, PUBLISH)
    for name in ("weight", "gate", "promote", "probes"):
        with pytest.raises(InvalidRequest, match=f"{name} is not JSON"):
            parse_form(PublishBody, {**form, name: "{"})

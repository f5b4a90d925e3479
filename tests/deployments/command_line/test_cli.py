"""The command line against a real HTTP server: refusals, keys, addresses, names."""

import json

import pytest

from deployments.registry.records import TenantRecord


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["adapters", "show", "t1/nosuch"], 1, "no adapter t1/nosuch"),
        (["adapters", "retire", "t1/nosuch"], 1, "no adapter t1/nosuch"),
        (["adapters", "show", "bot"], 2, "TENANT/NAME"),
        (["adapters", "show", "t1/b?x"], 1, "is not a name"),
        (["tenants", "create", "t1"], 1, "exists already"),
        (["tenants", "create", "T1"], 1, "is not a name"),
        (["tenants", "create", "t9", "--weight", "0"], 1, "weight"),
        (["tenants", "create", "t9", "--weight", "nan"], 2, "can't be sent"),
        (["tenants", "rotate-key", "nosuch"], 1, "no tenant nosuch"),
        (["adapters", "list", "--nosuch"], 2, "nosuch"),
    ],
)
def test_refusals_are_clear(loraplex, words, code, said):
    assert said in loraplex(*words, code=code)


@pytest.mark.parametrize(
    ("words", "code", "said", "param"),
    [
        (["adapters", "show", "t1/nosuch"], 1, "not_found", "name"),
        (["tenants", "create", "t9", "--weight", "0"], 1, "invalid_request", "weight"),
        (["adapters", "show", "bot"], 2, "wrong_usage", None),
        (["tenants", "change", "t1"], 2, "wrong_usage", None),
        (["tenants", "change", "t1", "--nosuch"], 2, "wrong_usage", None),
        (["--url", "http://127.0.0.1:1", "tenants", "list"], 3, "unreachable", None),
    ],
)
def test_with_json_an_error_is_json_too(loraplex, words, code, said, param):
    error = json.loads(loraplex(*words, "--json", code=code))["error"]
    assert (error["code"], error["param"]) == (said, param)
    assert error["message"] and error["type"]


def test_keys_and_urls_that_do_not_work(loraplex, world):
    assert "Incorrect API key" in loraplex("--admin-key", "lp-no", "tenants", "list", code=1)
    assert "needs an admin key" in loraplex(
        "--admin-key", world.keys["t1"], "tenants", "list", code=1
    )
    assert "LORAPLEX_ADMIN_KEY" in loraplex(
        "tenants", "list", code=2, env={"LORAPLEX_ADMIN_KEY": ""}
    )
    for url in ("http://127.0.0.1:1", "nonsense", "http://["):
        loraplex("--url", url, "tenants", "list", code=3)


@pytest.mark.parametrize("below", ["/", "/v1", "/v1/"])
def test_the_url_may_be_the_one_that_openai_clients_take(loraplex, below):
    assert "t1/bot" in loraplex("adapters", "list", below=below)


def test_names_are_never_cut(loraplex, world):
    name = "a" * 40 + "." + "b" * 22
    world.tenants.create(TenantRecord(name, max_rank=16, allowed_ranks=(8, 16)))
    told = {"epoch": "life", "number": 1, "usage": {name: {"num_requests": 4}}}
    world.control.ledger.read([told], 0.0)
    for words in (("tenants", "list"), ("usage",)):
        assert name in loraplex(*words, env={"COLUMNS": "80"}), "it goes to a file"
        narrow = loraplex(*words, env={"COLUMNS": "80", "TTY_COMPATIBLE": "1"})
        assert name not in narrow and "\u2026" not in narrow


def test_an_argument_that_is_not_utf8_is_named(loraplex, world):
    publish = ("adapters", "publish", "t2/new", "x", "--probe", "a\udcff")
    assert "argument a\\xff is not UTF-8" in loraplex(*publish, code=2)
    error = json.loads(loraplex(*publish, "--json", code=2))["error"]
    assert error["code"] == "wrong_usage" and world.control.orders == []

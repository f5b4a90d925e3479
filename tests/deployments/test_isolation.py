"""One tenant attacks another over REST: nothing of it shows, in any answer, list, error or log.

t1 has the adapter `bot`, which says what t1 alone may know; t2 knows all the names there are.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from engine.errors import AdapterRejected
from tests.support.ingress import InProcess, Step, World, bearer, error_of
from tests.support.memory_control import publish

DIGEST = "a" * 64
SECRET = "the-code-is-4711"
CHAT = "/v1/chat/completions"


def say(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}


@pytest.fixture
def attacker(world: World) -> dict[str, str]:
    return bearer(world.keys["t2"])


GUESSES = [
    "t1/{}",
    "{}",
    "t1/{}@production",
    "t1/{}@canary",
    f"t1/{{}}@{DIGEST}",
    f"{{}}@{DIGEST[:8]}",
    "t2/{}",
]


@pytest.mark.parametrize("guess", GUESSES)
async def test_anothers_adapter_is_unknown_in_the_very_words(
    client: httpx.AsyncClient, attacker: Mapping[str, str], guess: str
) -> None:
    """By every way to name it, for one that exists and one that doesn't."""
    for ask in (
        lambda name: client.post(CHAT, json=say(name), headers=attacker),
        lambda name: client.post(CHAT, json=say(name, stream=True), headers=attacker),
        lambda name: client.post(
            "/v1/completions", json={"model": name, "prompt": "x"}, headers=attacker
        ),
        lambda name: client.get(f"/v1/models/{name}", headers=attacker),
        lambda name: client.get(f"/v1/adapters/{name}", headers=attacker),
    ):
        there, absent = await ask(guess.format("bot")), await ask(guess.format("cat"))
        assert there.status_code == absent.status_code and there.status_code in (403, 404)
        assert there.text == absent.text.replace("cat", "bot")
        assert set(there.headers) == set(absent.headers)


async def test_lists_hold_ones_own(
    world: World, client: httpx.AsyncClient, attacker: Mapping[str, str]
) -> None:
    publish(world.registry, "t2", "mine", digest="b" * 64)
    await world.registry.two()
    models = (await client.get("/v1/models", headers=attacker)).json()["data"]
    assert [m["id"] for m in models] == ["org/tiny", "t2/mine"]
    listed = await client.get("/v1/adapters", headers=attacker)
    assert "t1" not in listed.text and DIGEST not in listed.text
    usage = (await client.get("/v1/usage", headers=attacker)).json()["data"]
    assert [u["tenant"] for u in usage] == ["t2"]


def routes(client: httpx.AsyncClient) -> Iterator[tuple[str, str]]:
    """(method, path) of every endpoint under /v1, with the victim's names filled in."""
    transport = client._transport
    assert isinstance(transport, httpx.ASGITransport)
    names = {"tenant": "t1", "name": "bot", "name:path": "bot", "version": DIGEST, "upload": "u"}
    for path, methods in transport.app.openapi()["paths"].items():  # type: ignore[attr-defined]
        if path.startswith("/v1/"):
            filled = re.sub(r"\{([^}]+)\}", lambda m: names.get(m[1], "bot"), path)
            for method in methods:
                yield method.upper(), filled


async def test_no_endpoint_gives_a_tenants_key_anything_of_another(
    world: World, client: httpx.AsyncClient, attacker: Mapping[str, str]
) -> None:
    """Every endpoint there is, now and later: with the names of t1, by t2."""
    seen = 0
    before = {e.key: e.rev for e in world.registry.list("").entries}
    for method, path in routes(client):
        for body in ({}, say("t1/bot"), {"tenant": "t1", "name": "bot", "folder": "x"}):
            answer = await client.request(
                method, path, headers=attacker, **({} if method == "GET" else {"json": body})
            )
            seen += 1
            assert answer.status_code < 500 or answer.status_code == 503, (method, path)
            for word in (DIGEST, world.keys["t1"][:7], "bot" if answer.status_code < 300 else "#"):
                assert word not in answer.text.replace(path, ""), (method, path, answer.text)
    assert seen > 60
    assert {e.key: e.rev for e in world.registry.list("").entries} == before


async def test_keys_that_never_were_and_keys_of_the_dead_get_the_same_words(
    world: World, client: httpx.AsyncClient
) -> None:
    old = world.keys["t2"]
    world.tenants.rotate_key("t2")
    await world.registry.two()
    answers = [
        await client.get("/v1/models", headers=bearer(key)) for key in (old, "lp-" + "x" * 43)
    ]
    assert [a.status_code for a in answers] == [401, 401]
    assert answers[0].json() == answers[1].json()


async def test_two_who_send_the_same_request_id_dont_meet(
    world: World, client: httpx.AsyncClient, attacker: Mapping[str, str]
) -> None:
    same = {"x-request-id": "mine-1"}
    await client.post(CHAT, json=say("bot"), headers=same)
    await client.post(CHAT, json=say("org/tiny"), headers={**attacker, **same})
    ids = [call["requests"][0]["id"] for call, _, _ in world.model.calls]
    assert len(set(ids)) == 2
    words = [re.sub(r"^mine-1[^.]*\.", "", name) for name in ids]
    assert all(len(word) >= 16 for word in words), "nobody guesses another's"


@pytest.mark.parametrize("salt", ["t1", f"t1/{DIGEST}", "a|b", "t1\x00", ""])
async def test_a_salt_stays_a_salt(
    world: World, client: httpx.AsyncClient, attacker: Mapping[str, str], salt: str
) -> None:
    """B-SALT-COLLIDE at the edge: it travels apart, and neither tenant nor adapter follow it."""
    body = say("org/tiny", cache_salt=salt, user=f"t1/{DIGEST}")
    assert (await client.post(CHAT, json=body, headers=attacker)).status_code == 200
    (request,) = world.model.requests
    assert (request["tenant"]["id"], request["adapter"], request["salt"]) == ("t2", None, salt)
    assert world.model.calls[-1][1:] == ("", "")


async def test_neither_prompts_nor_answers_nor_keys_are_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def whisper(call: Mapping[str, Any]) -> Iterator[Step]:
        yield [{"i": 0, "text": SECRET, "tokens": 1}]
        yield AdapterRejected("Adapter 'bot' is in quarantine.", code="adapter_quarantined")

    world.model.script = whisper
    with caplog.at_level(logging.DEBUG):
        async with InProcess(world) as client:
            words = [{"role": "user", "content": SECRET}]
            answer = await client.post(CHAT, json={"model": "bot", "messages": words})
            assert error_of(answer, 422)["code"] == "adapter_quarantined"
            bad = {"model": "bot", "messages": words, "temperature": SECRET}
            await client.post(CHAT, json=bad)
            await client.post(CHAT, json={"model": SECRET, "messages": words})
            await client.get("/v1/models", headers=bearer("lp-" + SECRET))
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert SECRET not in text and world.keys["t1"] not in text

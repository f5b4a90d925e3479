"""docs/adapters.md says of each endpoint who may, what it takes and what it answers: asked of the
application itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.ingress.ingress import create_app
from deployments.registry.records import SELF_PUBLISH
from tests.support.ingress import InProcess, World, bearer, error_of

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| `(?P<method>[A-Z]+) (?P<path>\S+)` \|(?P<rest>.*)\|")
OPENAI = ("/v1/chat/completions", "/v1/completions", "/v1/models")
PLACES = {"tenant": "t1", "name": "bot", "alias": "beta", "version": "a" * 8, "file": "x"}


@dataclass(frozen=True)
class Row:
    method: str
    path: str
    who: str
    keys: frozenset[str]
    needed: frozenset[str]
    answer: str
    errors: str

    @property
    def takes_body(self) -> bool:
        return self.method in ("POST", "PUT", "PATCH")

    @property
    def url(self) -> str:
        return self.path.format_map(PLACES)


def rows() -> list[Row]:
    found = []
    for line in (ROOT / "docs" / "adapters.md").read_text().splitlines():
        if match := ROW.fullmatch(line):
            who, takes, answer, errors = (cell.strip() for cell in match["rest"].split("|"))
            needed = frozenset(re.findall(r"\*\*`(\w+)`\*\*", takes))
            keys = frozenset(re.findall(r"`(\w+)`", takes))
            found.append(Row(match["method"], match["path"], who, keys, needed, answer, errors))
    return found


ROWS = rows()


@pytest.fixture
async def client(world: World) -> Any:
    async with InProcess(world) as client:
        client.headers.update(bearer(world.keys["admin"]))
        yield client


def test_every_endpoint_is_there_once(world: World) -> None:
    paths = create_app(world.parts()).openapi()["paths"]
    mine = [
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if path.startswith("/v1/") and not path.startswith(OPENAI)
    ]
    assert sorted((row.method, row.path) for row in ROWS) == sorted(mine)


async def refused(client: httpx.AsyncClient, row: Row, **sent: Any) -> dict[str, Any]:
    return error_of(await client.request(row.method, row.url, **sent), 400)


async def test_what_each_takes_is_what_the_page_says(client: Any, world: World) -> None:
    before = world.registry.list("")
    for row in ROWS:
        error = await refused(client, row, params={"nosuch": "1"})
        assert error["param"] == "nosuch"
        if not row.takes_body:
            assert set(re.findall(r"\w+", error["message"].partition("only ")[2])) == row.keys, row
            error = await refused(client, row, json={"nosuch": 1})
            assert "takes no body" in error["message"]
            continue
        error = await refused(client, row, json={**dict.fromkeys(row.needed, "x"), "nosuch": 1})
        known = error["message"].partition("may be: ")[2]
        assert (error["param"], set(re.findall(r"\w+", known))) == ("nosuch", row.keys), row
        for field in row.needed:
            error = await refused(client, row, json=dict.fromkeys(row.needed - {field}, "x"))
            assert (error["param"], error["message"]) == (field, f"{field}: is needed.")
    assert world.registry.list("") == before


async def test_who_may_is_what_the_page_says(client: Any, world: World) -> None:
    plain, own = world.keys["t2"], world.keys["t1"]
    record = world.tenants.get("t1").with_flag(SELF_PUBLISH, True)
    world.registry.put(record.key, record.to_value(), None)
    async with InProcess(world) as client:  # a fresh one knows of the flag at once
        for row in ROWS:
            answer = await client.request(row.method, row.url, headers=bearer(plain))
            assert (answer.status_code == 403) == (row.who != "any"), row
            error_of(await client.request(row.method, row.url, headers=bearer("lp-no")), 401)
            answer = await client.request(
                row.method, row.url, headers=bearer(own), params={"nosuch": "1"}
            )
            assert answer.status_code == 400
            answer = await client.request(row.method, row.url, headers=bearer(own))
            assert (answer.status_code == 403) == (row.who == "admin"), (row, answer.text)


async def test_a_body_that_needs_nothing_may_be_left_out(client: Any, world: World) -> None:
    world.model.replies = [{"slot": 0, "ready": True}]
    world.model.answers = [{"slot": 0, "tier": "device", "why": None}]
    for row in ROWS:
        if not row.takes_body or row.needed or row.path.endswith("rollback"):
            continue
        answer = await client.request(row.method, row.url)
        assert answer.status_code == int(row.answer[:3]), (row, answer.text)
    error = error_of(await client.post("/v1/adapters/t1/bot/rollback"), 409)
    assert error["code"] == "nothing_before"


def test_the_codes_are_written_as_in_the_source() -> None:
    source = "".join(
        path.read_text() for top in ("deployments", "engine") for path in (ROOT / top).rglob("*.py")
    )
    for row in ROWS:
        for code in re.findall(r"`(\w+)`", row.errors):
            assert f'"{code}"' in source, code

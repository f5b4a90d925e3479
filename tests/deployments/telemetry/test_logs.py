"""Log lines: their keys, whose request they are of, and what they must not have."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deployments.telemetry.following import Follower
from deployments.telemetry.logs import about_request, begin_request
from engine.log_lines import JsonLines, fields
from engine.types import AdapterRef
from tests.support.ingress import World, announce, bearer, events

SECRET = "a prompt that nobody may see"
REF = AdapterRef("acme", "bot", "d" * 64, "rev", (8,), 1, 1, "")


class Lines:
    """What the loggers `loraplex` and `deployments` wrote, as a process of the service does."""

    def __init__(self) -> None:
        self._out = io.StringIO()
        self.handler = logging.StreamHandler(self._out)
        self.handler.setFormatter(JsonLines("test", about_request))

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.getvalue().splitlines()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines = Lines()
    loggers = [logging.getLogger(name) for name in ("loraplex", "deployments")]
    for logger in loggers:
        logger.addHandler(lines.handler)
        logger.setLevel(logging.INFO)
    yield lines
    for logger in loggers:
        logger.removeHandler(lines.handler)
        logger.setLevel(logging.NOTSET)


def failing() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ValueError(f"can't read {SECRET}") from error


def test_a_line_says_what_is_known(lines: Lines) -> None:
    log = logging.getLogger("loraplex.test")
    log.info("two\nlines", extra=fields(REF, seconds=0.5))
    (line,) = lines.read()
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "role": "test",
        "logger": "loraplex.test",
        "message": "two\nlines",
        "adapter": "acme/bot",
        "version": "d" * 64,
        "seconds": 0.5,
    }


async def test_each_task_s_lines_are_of_its_own_request(lines: Lines) -> None:
    async def work(name: str) -> None:
        about = begin_request(name)
        about["tenant"] = f"tenant of {name}"
        for _ in range(3):
            await asyncio.sleep(0)
            logging.getLogger("loraplex.test").info(name)

    await asyncio.gather(*(asyncio.create_task(work(f"r{i}")) for i in range(5)))
    told = lines.read()
    assert len(told) == 15
    assert all(x["request_id"] == x["message"] for x in told)
    assert all(x["tenant"] == f"tenant of {x['message']}" for x in told)


@pytest.mark.parametrize("within_request", [True, False])
async def test_the_text_of_an_exception_of_a_request_is_left_out(
    lines: Lines, within_request: bool
) -> None:
    if within_request:
        begin_request("r")
    try:
        failing()
    except ValueError:
        logging.getLogger("loraplex.test").exception("failed")
    (line,) = lines.read()
    assert (SECRET in line["error"]) != within_request
    assert "ValueError" in line["error"] and "KeyError" in line["error"]
    assert "in failing" in line["error"]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "bot", "messages": [{"role": "user", "content": SECRET}], **more}


async def test_an_answer_has_one_line_without_its_content(
    client: httpx.AsyncClient, lines: Lines
) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(max_tokens=4))
    assert (await client.get("/health")).status_code == 200
    (line,) = lines.read()
    assert line["message"] == "answered" and line["request_id"] == answer.headers["x-request-id"]
    assert (line["status"], line["path"], line["tenant"]) == (200, "/v1/chat/completions", "t1")
    assert line["completion_tokens"] == answer.json()["usage"]["completion_tokens"]
    assert SECRET not in json.dumps(line)


@pytest.mark.parametrize("stream", [False, True])
async def test_content_is_logged_for_tenants_that_want_it(
    client: httpx.AsyncClient, world: World, lines: Lines, stream: bool
) -> None:
    admin = bearer(world.keys["admin"])
    await client.patch("/v1/tenants/t1", json={"log_content": True}, headers=admin)
    body = chat(max_tokens=4, n=2, stream=stream)
    async with asyncio.timeout(60):
        while not [x for x in lines.read() if x["message"] == "content"]:
            answer = await client.post("/v1/chat/completions", json=body)
            await asyncio.sleep(0.05)
    line = next(x for x in lines.read() if x["message"] == "content")
    assert line["prompt"] == body["messages"] and line["answers"] == ["one0 two", "one1 two"]
    assert line["tenant"] == "t1" and line["adapter"] == "t1/bot"
    if stream:
        assert events(answer)


async def test_a_client_that_goes_away_is_told_as_such(
    client: httpx.AsyncClient, world: World, lines: Lines
) -> None:
    world.model.script = lambda call: ["hang"]
    called = announce(world.model)
    asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
    await called.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    (line,) = [x for x in lines.read() if x["message"] == "answered"]
    assert line["status"] == 499


def test_without_an_access_log_there_is_no_line(lines: Lines) -> None:
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": []}
    for follower, num in ((Follower(access_log=False), 0), (Follower(access_log=True), 1)):
        with follower.follow(scope, "r") as followed:
            followed.status = 200
        assert len(lines.read()) == num

"""Real servers for the registry's tests. A test that shares one uses a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_servers import RedisServer, ReplicatedRedis, replicated, server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with server(tmp_path_factory.mktemp("redis")) as one:
        yield one


@pytest.fixture(scope="session")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedRedis]:
    with replicated(tmp_path_factory.mktemp("sentinels")) as every:
        yield every

"""The command line, run against a real HTTP server; and an adapter with two versions."""

import pytest
from typer.testing import CliRunner

from deployments.command_line.cli import app
from deployments.ingress.ingress import create_app
from tests.support.ingress import LocalServer
from tests.support.memory_control import publish, put_version


@pytest.fixture
def loraplex(world):
    """Runs one command line; asserts its exit code; answers what it said. below: a path that
    LORAPLEX_URL ends in."""
    with LocalServer(create_app(world.parts())) as url:

        def run(*words, code=0, env=None, below=""):
            key = world.keys["admin"]
            env = {"LORAPLEX_URL": url + below, "LORAPLEX_ADMIN_KEY": key, **(env or {})}
            result = CliRunner().invoke(app, list(words), env=env)
            assert result.exit_code == code, result.output
            return result.output

        yield run


@pytest.fixture
def two(world):
    """t1/bot has two whole versions, the second in production."""
    digests = []
    for manifest in (b"one", b"two"):
        version = put_version(world.store, "t1", "bot", manifest)
        digests.append(version.ref.digest)
        publish(world.registry, "t1", "bot", digest=digests[-1])
    return digests

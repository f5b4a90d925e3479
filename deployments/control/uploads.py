"""An adapter's files out of a multipart body: onto the disk as they arrive, then into the store.

Nothing of a file is kept in memory beyond one piece. The fields' values, which are small, are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from deployments.control.added_tokens import MAX_TOKENIZER_BYTES
from deployments.control.publish_order import SMALLER, too_large
from engine.adapters.peft import MAX_CONFIG_BYTES
from engine.adapters.store import CONFIG, TENSORS, TOKENIZER_FILES
from engine.errors import InvalidRequest, TooLarge

MAX_FIELD_BYTES = 64 << 10
MAX_PARTS = 64
MAX_OTHER_BYTES = 128 << 20
"""Of a body, besides the tensors."""
PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class _Part:
    """One part under way. file: None for a field, or a file that nobody needs."""

    name: str = ""
    filename: str | None = None
    file: BinaryIO | None = None
    value: bytearray = field(default_factory=bytearray)
    num_bytes: int = 0


class Upload:
    """Feeds a body's pieces to a parser. `fields` by name, once the body is done.

    folder     where adapter_config.json, adapter_model.safetensors and a tokenizer's files are
               written; other files of the body are read past
    max_bytes  of the tensors
    """

    def __init__(self, content_type: str, folder: Path, max_bytes: int) -> None:
        """Raises InvalidRequest where `content_type` is no multipart form."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidRequest("The body is no multipart form with a boundary.")
        self._folder = folder
        self._limits = {
            CONFIG: MAX_CONFIG_BYTES,
            TENSORS: max_bytes,
            **dict.fromkeys(TOKENIZER_FILES, MAX_TOKENIZER_BYTES),
        }
        self.fields: dict[str, str] = {}
        self.files: dict[str, int] = {}
        self._part: _Part | None = None
        self._num_parts = 0
        self._header = b""
        self._value = b""
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_end": self._all,
            },
        )

    def check_length(self, declared: str) -> None:
        """declared: the body's Content-Length, if it has one. Raises TooLarge where that is more
        than `read` would take, before anything has come."""
        most = self._limits[TENSORS]
        if declared.isdigit() and int(declared) > most + MAX_OTHER_BYTES:
            raise TooLarge(
                f"The upload has {declared} bytes, and {TENSORS} may have {most}. {SMALLER}"
            )

    async def read(self, pieces: AsyncIterator[bytes], idle_s: float) -> None:
        """All of the body. Raises InvalidRequest (malformed, or nothing came for `idle_s`),
        TooLarge."""
        pending = bytearray()
        left = self._limits[TENSORS] + MAX_OTHER_BYTES
        source = aiter(pieces)
        try:
            while True:
                async with asyncio.timeout(idle_s):
                    piece = await anext(source, None)
                if piece is not None:
                    pending += piece
                    left -= len(piece)
                    if left < 0:
                        raise TooLarge("The body has too much besides the adapter's two files.")
                if piece is None or len(pending) >= PIECE_BYTES:
                    await asyncio.to_thread(self._write, bytes(pending))
                    pending.clear()
                if piece is None:
                    break
        except TimeoutError:
            raise InvalidRequest(
                f"Nothing of the body came for {idle_s:g} s. Upload again.", code="body_timeout"
            ) from None
        finally:
            self._close()
        if not self._ended:
            raise InvalidRequest("The body ends in the middle. Upload again.")

    def _write(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise InvalidRequest(f"The multipart body is malformed: {error}.") from None

    # What the parser calls ------------------------------------------------------------------------
    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"The body has more than {MAX_PARTS} parts.")
        self._part = _Part()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        assert self._part is not None
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._part.name = options.get(b"name", b"").decode("utf-8", "replace")
            filename = options.get(b"filename")
            if filename is not None:
                self._part.filename = filename.decode("utf-8", "replace")
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        part = self._part
        assert part is not None
        # A file's name is compared, never used as a path.
        if part.filename in self._limits:
            if part.filename in self.files:
                raise InvalidRequest(f"The body has {part.filename} twice.")
            self.files[part.filename] = 0
            part.file = (self._folder / part.filename).open("wb")
        elif part.filename is not None:
            self.files[part.filename[:200]] = 0

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        assert part is not None
        part.num_bytes += end - start
        if part.file is not None:
            assert part.filename is not None
            most = self._limits[part.filename]
            if part.num_bytes > most:
                raise too_large(part.filename, most)
            part.file.write(data[start:end])
        elif part.filename is None:
            if part.num_bytes > MAX_FIELD_BYTES:
                raise TooLarge(f"{part.name[:80]} is larger than {MAX_FIELD_BYTES} bytes.")
            part.value += data[start:end]

    def _end(self) -> None:
        part = self._part
        assert part is not None
        if part.filename is not None:
            self.files[part.filename[:200]] = part.num_bytes
        else:
            self._set(part)
        self._close()

    def _set(self, part: _Part) -> None:
        if part.name in self.fields:
            raise InvalidRequest(
                f"{part.name[:80]} is there twice. Send it once.", param=part.name[:80]
            )
        try:
            self.fields[part.name] = part.value.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(
                f"{part.name[:80]} is not UTF-8. Send it so.", param=part.name[:80]
            ) from None

    def _all(self) -> None:
        self._ended = True

    def _close(self) -> None:
        if self._part is not None and self._part.file is not None:
            self._part.file.close()
        self._part = None

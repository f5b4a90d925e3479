"""Publishing from a multipart form: its fields as JSON has them, its files in the store."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import Request

from deployments.control.import_folder import missing_file
from deployments.control.publish_order import Source, upload_prefix
from deployments.control.uploads import Upload
from deployments.ingress.serving import Sources
from deployments.registry.records import check_name
from deployments.rest.edge import BODY_TIMEOUT_S
from deployments.rest.rest_bodies import PublishBody, parse_form
from engine.adapters.store import CONFIG, TENSORS, TOKENIZER_FILES, ObjectStore
from engine.errors import InvalidRequest, Unavailable

RETRY_S = 5.0
FILES = (CONFIG, TENSORS, *TOKENIZER_FILES)


@dataclass(slots=True, eq=False)
class UploadForms:
    """max_bytes: of an adapter's tensors. max_at_once: bodies that this ingress takes at once."""

    store: ObjectStore
    sources: Sources
    max_bytes: int
    max_at_once: int
    _num: int = field(default=0, init=False)

    @asynccontextmanager
    async def stored(
        self, request: Request, owner: Callable[[PublishBody], str]
    ) -> AsyncIterator[tuple[PublishBody, Source]]:
        """The form's fields, and its files in the object store, where control finds them. owner:
        whose the adapter is to be; what it refuses is not stored.

        Raises InvalidRequest, TooLarge, Unavailable.
        """
        if self._num >= self.max_at_once:
            raise Unavailable(
                f"This ingress takes {self.max_at_once} uploads at once. Try again shortly.",
                code="overloaded",
                retry_after_s=RETRY_S,
            )
        self._num += 1
        try:
            with tempfile.TemporaryDirectory(prefix="loraplex-") as scratch:
                upload = Upload(request.headers["content-type"], Path(scratch), self.max_bytes)
                upload.check_length(request.headers.get("content-length", ""))
                await upload.read(request.stream(), BODY_TIMEOUT_S)
                body = _checked(upload)
                tenant = check_name(owner(body), "tenant")
                word = f"{int(self.sources.wall())}-{self.sources.word()}"
                for name in (n for n in FILES if n in upload.files):
                    key = f"{upload_prefix(tenant, word)}/{name}"
                    await asyncio.to_thread(self.store.put, key, Path(scratch) / name)
            yield body, Source(upload=word)
        finally:
            self._num -= 1


def _checked(upload: Upload) -> PublishBody:
    """What is refused anyhow is not stored first."""
    body = parse_form(PublishBody, upload.fields)
    if body.folder is not None or body.prefix is not None:
        raise InvalidRequest("Give one of folder and prefix, or upload the files.", param="folder")
    body.placing()
    body.asked()
    for name in (CONFIG, TENSORS):
        if name not in upload.files:
            raise missing_file(name, upload.files)
    return body

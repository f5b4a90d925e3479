"""The admin endpoints, called over REST: what the command line stands on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx

from deployments.config import ClientConfig
from deployments.control.publish_order import SMALLER
from engine.adapters.store import TOKENIZER_FILES

TIMEOUT_S = 30.0
PUBLISH_TIMEOUT_S = 900.0
SWEEP_TIMEOUT_S = 3600.0
PAGE = 1000

Told = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all)."""


class Refused(Exception):
    """The service said no. `status` is the HTTP status; the text is the service's, and `body` its
    whole error."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(body["message"])
        self.status = status
        self.body = body


class Unreachable(Exception):
    """No answer, or none of this service's."""


class Unusable(Exception):
    """An argument that no request can carry, or a local file that can't be used."""


class AdminClient:
    """Every call raises Refused, Unreachable or Unusable. transport: for tests."""

    def __init__(self, config: ClientConfig, transport: httpx.BaseTransport | None = None) -> None:
        headers = {"authorization": f"Bearer {config.admin_key}"} if config.admin_key else {}
        self._url = config.url
        # What `make serve` prints as the endpoint, and openai clients take, ends in /v1.
        base_url = config.url.rstrip("/").removesuffix("/v1")
        try:
            self._http = httpx.Client(
                base_url=base_url,
                headers=headers,
                timeout=TIMEOUT_S,
                transport=transport,
            )
        except (httpx.InvalidURL, ValueError, UnicodeEncodeError) as error:
            raise Unreachable(f"{config.url} or the key can't be used: {error}") from None

    def publish(self, **fields: Any) -> dict[str, Any]:
        """From a folder or a prefix that the service reads itself."""
        return self._call("POST", "/v1/adapters", json=fields, timeout=PUBLISH_TIMEOUT_S)

    def upload(self, folder: Path, told: Told, **fields: Any) -> dict[str, Any]:
        """The files of `folder`, as they are read; nothing of them is kept in memory."""
        form = {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}
        with contextlib.ExitStack() as stack:
            try:
                paths = sorted(p for p in folder.iterdir() if p.is_file())
                paths = [
                    p for p in paths if p.name.startswith("adapter_") or p.name in TOKENIZER_FILES
                ]
                files = [stack.enter_context(p.open("rb")) for p in paths]
                total = sum(os.fstat(f.fileno()).st_size for f in files)
            except OSError as error:
                raise Unusable(f"{folder} can't be read: {error.strerror}.") from None
            if not files:
                raise Unusable(f"{folder} has no adapter_config.json. Name a folder of PEFT's.")
            self._check_sizes(paths)
            count = _Count(total, told)
            parts = [
                ("files", (path.name, _Watched(file, count)))
                for path, file in zip(paths, files, strict=True)
            ]
            return self._call(
                "POST", "/v1/adapters", data=form, files=parts, timeout=PUBLISH_TIMEOUT_S
            )

    def _check_sizes(self, paths: list[Path]) -> None:
        """Ahead of sending gigabytes that are refused."""
        most = self._call("GET", "/v1/adapters/limits")["max_upload_bytes"]
        for path in paths:
            if (num_bytes := path.stat().st_size) > most:
                raise Unusable(
                    f"{path} has {num_bytes} bytes, and the service takes {most}. {SMALLER}"
                )

    def download(
        self, tenant: str, name: str, version: str, file: str, target: Path, told: Told
    ) -> None:
        """Into `target`, which is whole or not there."""
        path = _path("adapters", tenant, name, "versions", version, "files", file)
        partial = target.with_name(f"{target.name}.partial")
        try:
            with self._http.stream("GET", path) as response, partial.open("wb") as out:
                if not response.is_success:
                    response.read()
                    self._answer(response)
                total = int(response.headers.get("content-length", 0))
                for piece in response.iter_bytes():
                    out.write(piece)
                    told(out.tell(), total)
                if out.tell() != total:
                    raise Unreachable(f"{file} was cut at {out.tell()} of {total} bytes.")
            partial.rename(target)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._url}: {error or type(error).__name__}") from None
        except OSError as error:
            raise Unusable(f"{target} can't be written: {error.strerror}.") from None
        finally:
            partial.unlink(missing_ok=True)

    def adapters(
        self, tenant: str | None, limit: int | None = None, after: str = ""
    ) -> list[dict[str, Any]]:
        """`limit` None: all, page by page."""
        params = {} if tenant is None else {"tenant": tenant}
        return list(self._pages("/v1/adapters", params, limit, after))

    def adapter(self, tenant: str, name: str) -> dict[str, Any]:
        return self._call("GET", _path("adapters", tenant, name))

    def promote(self, tenant: str, name: str, **fields: Any) -> dict[str, Any]:
        return self._call("POST", _path("adapters", tenant, name, "promote"), json=fields)

    def roll_back(self, tenant: str, name: str, **fields: Any) -> dict[str, Any]:
        return self._call("POST", _path("adapters", tenant, name, "rollback"), json=fields)

    def remove_alias(self, tenant: str, name: str, alias: str) -> dict[str, Any]:
        return self._call("DELETE", _path("adapters", tenant, name, "aliases", alias))

    def retire(
        self, tenant: str, name: str, version: str | None = None, now: bool = False
    ) -> dict[str, Any]:
        below = () if version is None else ("versions", version)
        params = {"now": "true"} if now else {}
        return self._call("DELETE", _path("adapters", tenant, name, *below), params=params)

    def prefetch(self, tenant: str, name: str, **fields: Any) -> dict[str, Any]:
        return self._call("POST", _path("adapters", tenant, name, "prefetch"), json=fields)

    def pin(self, tenant: str, name: str, **fields: Any) -> dict[str, Any]:
        return self._call("PUT", _path("adapters", tenant, name, "pin"), json=fields)

    def unpin(self, tenant: str, name: str) -> dict[str, Any]:
        return self._call("DELETE", _path("adapters", tenant, name, "pin"))

    def pins(self) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = self._call("GET", "/v1/pins")["data"]
        return data

    def tenants(self, limit: int | None = None, after: str = "") -> list[dict[str, Any]]:
        return list(self._pages("/v1/tenants", {}, limit, after))

    def create_tenant(self, **fields: Any) -> dict[str, Any]:
        return self._call("POST", "/v1/tenants", json=fields)

    def change_tenant(self, tenant: str, **fields: Any) -> dict[str, Any]:
        return self._call("PATCH", _path("tenants", tenant), json=fields)

    def suspend(self, tenant: str) -> dict[str, Any]:
        return self._call("POST", _path("tenants", tenant, "suspend"))

    def resume(self, tenant: str) -> dict[str, Any]:
        return self._call("POST", _path("tenants", tenant, "resume"))

    def rotate_key(self, tenant: str) -> dict[str, Any]:
        return self._call("POST", _path("tenants", tenant, "rotate-key"))

    def usage(
        self, tenant: str = "", limit: int | None = None, after: str = ""
    ) -> list[dict[str, Any]]:
        return list(self._pages("/v1/usage", {"tenant": tenant} if tenant else {}, limit, after))

    def sweep(self, dry_run: bool) -> dict[str, Any]:
        body = {"dry_run": dry_run}
        return self._call("POST", "/v1/store/sweep", json=body, timeout=SWEEP_TIMEOUT_S)

    def status(self, max_tenants: int = PAGE) -> dict[str, Any]:
        """See `deployments.rest.service_status`."""
        return self._call("GET", "/v1/status", params={"limit": max_tenants})

    def close(self) -> None:
        self._http.close()

    def _pages(
        self, path: str, params: Mapping[str, str], limit: int | None, after: str
    ) -> Iterator[dict[str, Any]]:
        while True:
            page = {**params, "limit": limit or PAGE, "after": after}
            answer = self._call("GET", path, params=page)
            yield from answer["data"]
            if limit is not None or not answer["has_more"]:
                return
            after = answer["last"]

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(f"{self._url} can't be reached: {reason}") from None
        except httpx.InvalidURL as error:
            raise Unreachable(f"{self._url} is not a URL: {error}") from None
        except ValueError as error:  # of the arguments: JSON has no NaN
            raise Unusable(f"This can't be sent: {error}.") from None
        return self._answer(response)

    def _answer(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
            if response.is_success and isinstance(answer, dict):
                return answer
            error = answer["error"]
            str(error["message"])
        except (ValueError, TypeError, KeyError):
            raise Unreachable(
                f"{self._url} answers, but not as this service does (HTTP {response.status_code})."
            ) from None
        raise Refused(response.status_code, error)


class _Count:
    """Of an upload's bytes that were read."""

    def __init__(self, total: int, told: Told) -> None:
        self._done, self._total, self._told = 0, total, told

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._told(min(self._done, self._total), self._total)


class _Watched:
    """A file that tells what is read of it."""

    def __init__(self, file: BinaryIO, count: _Count) -> None:
        self._file = file
        self._count = count

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._count.add(len(data))
        return data

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)

"""The admin endpoints of a loraplex service, over REST; other services do without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp

NUM_TRIES = 8
TIMEOUT_S = 900.0


class ServiceError(Exception):
    """The service refused, or doesn't answer. status 0: no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """Every call raises ServiceError."""

    def __init__(self, http: aiohttp.ClientSession, url: str, admin_key: str) -> None:
        """url: with or without its /v1."""
        self._http = http
        self._url = v1(url)
        self._headers = {"authorization": f"Bearer {admin_key}"}

    async def replicas(self) -> list[dict[str, Any]]:
        """What each replica says of itself."""
        data: list[dict[str, Any]] = (await self._call("GET", "/replicas"))["data"]
        return data

    async def pids(self) -> dict[str, str]:
        """Process ids, for faults on the same host: `replica_pid`, `core_pid` and `loader_pid` of
        the first replica, `replica_pid_1` of the second, and so on."""
        found: dict[str, str] = {}
        for number, replica in enumerate(await self.replicas()):
            for name, pid in replica.get("pids", {}).items():
                found[f"{name}_pid_{number}" if number else f"{name}_pid"] = str(pid)
        return found

    async def models(self, tenant: str) -> set[str]:
        """Names of its adapters that requests can name."""
        names: set[str] = set()
        after = ""
        while True:
            path = f"/adapters?tenant={quote(tenant)}&after={quote(after)}"
            page = await self._call("GET", path)
            for record in page["data"]:
                # Any other word but these two says where a named version is.
                if record.get("status") not in ("kept", "retired"):
                    names.add(str(record["name"]))
            if not page.get("has_more"):
                return names
            after = page["last"]

    async def tenant_key(self, tenant: str, **limits: Any) -> str:
        """A new key of `tenant`, which is made where there is none: a key made before stops."""
        try:
            made = await self._call("POST", "/tenants", json={"id": tenant, **limits})
        except ServiceError as error:
            if error.status != 409:
                raise
            made = await self._call("POST", f"/tenants/{quote(tenant)}/rotate-key")
        return str(made["key"])

    async def publish(self, tenant: str, name: str, files: Mapping[str, bytes]) -> None:
        """An adapter of these files."""

        def form() -> aiohttp.FormData:
            data = aiohttp.FormData({"tenant": tenant, "name": name})
            for filename, content in files.items():
                data.add_field("files", content, filename=filename)
            return data

        for _ in range(NUM_TRIES):
            async with self._sent("POST", "/adapters", data=form()) as response:
                if response.status != 503:
                    await _answer(response)
                    return
                wait_s = float(response.headers.get("retry-after", 1))
            await asyncio.sleep(wait_s)
        raise ServiceError(f"{tenant}/{name}: the service took no upload in {NUM_TRIES} tries.")

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        async with self._sent(method, path, **options) as response:
            return await _answer(response)

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._http.request(
                method, self._url + path, headers=self._headers, timeout=timeout, **options
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ServiceError(f"{self._url} can't be reached: {reason}.") from None


def v1(url: str) -> str:
    """With /v1 at its end, once."""
    return url.rstrip("/").removesuffix("/v1") + "/v1"


async def _answer(response: aiohttp.ClientResponse) -> dict[str, Any]:
    try:
        values = await response.json(content_type=None)
        if response.status < 400 and isinstance(values, dict):
            return values
        message = str(values["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = "it doesn't answer as a loraplex service does."
    raise ServiceError(f"HTTP {response.status}: {message}", response.status)

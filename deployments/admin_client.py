"""The admin endpoints, called over REST: what the command line stands on."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

from deployments.config import ClientConfig

TIMEOUT_S = 30.0
PUBLISH_TIMEOUT_S = 900.0


class Refused(Exception):
    """The service said no. `status` is the HTTP status; the text is the service's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(Exception):
    """No answer, or none of this service's."""


class Unusable(Exception):
    """An argument that no request can carry."""


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

    def publish(self, tenant: str, name: str, folder: str, base: str | None) -> dict[str, Any]:
        body = {"tenant": tenant, "name": name, "folder": folder, "base": base}
        return self._call("POST", "/v1/adapters", json=body, timeout=PUBLISH_TIMEOUT_S)

    def adapters(self, tenant: str | None) -> list[dict[str, Any]]:
        params = {} if tenant is None else {"tenant": tenant}
        data: list[dict[str, Any]] = self._call("GET", "/v1/adapters", params=params)["data"]
        return data

    def adapter(self, tenant: str, name: str) -> dict[str, Any]:
        return self._call("GET", _path("adapters", tenant, name))

    def retire(self, tenant: str, name: str) -> dict[str, Any]:
        return self._call("DELETE", _path("adapters", tenant, name))

    def tenants(self) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = self._call("GET", "/v1/tenants")["data"]
        return data

    def create_tenant(self, **fields: Any) -> dict[str, Any]:
        return self._call("POST", "/v1/tenants", json=fields)

    def rotate_key(self, tenant: str) -> dict[str, Any]:
        return self._call("POST", _path("tenants", tenant, "rotate-key"))

    def close(self) -> None:
        self._http.close()

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
        try:
            answer = response.json()
            if response.is_success and isinstance(answer, dict):
                return answer
            message = answer["error"]["message"]
        except (ValueError, TypeError, KeyError):
            raise Unreachable(
                f"{self._url} answers, but not as this service does (HTTP {response.status_code})."
            ) from None
        raise Refused(response.status_code, message)


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)

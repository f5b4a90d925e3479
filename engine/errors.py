"""Every error that a client or an operator can meet, in one tree.

LoraplexError                       500
├── RequestError                    the caller's to mend; nothing changed
│   ├── InvalidRequest              400  malformed, or a value out of range
│   ├── Unauthenticated             401  no key, or a wrong one
│   ├── PermissionDenied            403  a known key without that right
│   ├── NotFound                    404  unknown, or another tenant's (the same words)
│   ├── Conflict                    409  somebody else changed it first
│   ├── TooLarge                    413  the body is over its limit
│   ├── AdapterRejected             422  an adapter that can't be served as it is
│   └── TooManyRequests             429  over a tenant's own limit
├── UnsupportedModel                500  a base model that this release can't serve
├── UnsupportedDevice               500  no GPU here that this release can use
├── DeviceMemoryShort               500  the GPU has too little memory for this model and config
├── Unavailable                     503  ours to mend; trying again may help
│   ├── RegistryUnavailable         503  the registry can't be read or written
│   ├── AdapterUnavailable          503  its object can't be had at present; the kinds of it and
│   │                                    their codes are in adapters/store.py and s3_errors.py
│   ├── ReplicaLost                 503  the replica is gone, or about to go
│   └── CoreLost                    503  its core died when it had read the request
└── RequestTimeout                  504  over the request's deadline

Standard library only: ingress, router, core and loader share it. Errors cross processes as
`ErrorInfo`, a plain value.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as a value: what crosses a process boundary and what REST shows. public: see
    `LoraplexError`."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    public: str | None = None


def _text(quoted: str) -> str:
    """What is quoted from a file may hold half a surrogate pair, which no answer or log can."""
    return quoted.encode("utf-8", "backslashreplace").decode()


class LoraplexError(Exception):
    """Base of the tree. `message` says what is wrong and the remedy, in a sentence each. `public`
    is what tenants are told in its place, where it names buckets, paths or others' things."""

    status = 500
    code = "internal_error"
    default_retry_after_s: float | None = None
    """When to try again, where nothing better is known; None: that alone helps nobody."""
    default_public: str | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        public: str | None = None,
    ) -> None:
        message = _text(message)
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.param = None if param is None else _text(param)
        self.public = self.default_public if public is None else public
        self.retry_after_s = self.default_retry_after_s if retry_after_s is None else retry_after_s

    def info(self) -> ErrorInfo:
        return ErrorInfo(
            self.status, self.code, self.message, self.param, self.retry_after_s, self.public
        )


class RequestError(LoraplexError):
    status = 400
    code = "invalid_request"


class InvalidRequest(RequestError):
    pass


class Unauthenticated(RequestError):
    status = 401
    code = "invalid_api_key"


class PermissionDenied(RequestError):
    status = 403
    code = "permission_denied"


class NotFound(RequestError):
    status = 404
    code = "not_found"


class Conflict(RequestError):
    status = 409
    code = "conflict"


class TooLarge(RequestError):
    status = 413
    code = "request_too_large"


class AdapterRejected(RequestError):
    status = 422
    code = "adapter_rejected"


class TooManyRequests(RequestError):
    status = 429
    code = "rate_limit_exceeded"


class UnsupportedModel(LoraplexError):
    code = "unsupported_model"


class UnsupportedDevice(LoraplexError):
    code = "unsupported_device"


class DeviceMemoryShort(LoraplexError):
    code = "device_memory_short"


class Unavailable(LoraplexError):
    status = 503
    code = "unavailable"
    default_retry_after_s: float | None = 1.0


class RegistryUnavailable(Unavailable):
    code = "registry_unavailable"
    default_public = "The service's registry can't be used at present. Try again shortly."


class AdapterUnavailable(Unavailable):
    code = "adapter_unavailable"


class ReplicaLost(Unavailable):
    code = "replica_lost"


class CoreLost(Unavailable):
    """Not to be tried on another replica: the request, which the core had read, may be what it died
    of."""

    code = "core_lost"


class RequestTimeout(LoraplexError):
    status = 504
    code = "timeout"

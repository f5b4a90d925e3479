"""What went wrong at an S3 store, as one of our errors: a code for each cause, and its remedy.

    code                         passes  cause
    object_missing               no      the store itself says that there is no such object
    object_changed               yes     it is no longer the object that was begun
    store_bucket_missing         no      there is no such bucket
    store_forbidden              no      our credentials may not do this, or are not known
    store_credentials_expired    no      they were good once
    store_no_credentials         no      there are none, or their source fails
    store_wrong_region           no      the bucket is in another region
    store_clock_skewed           no      this machine's clock is wrong
    store_tls_failed             no      the server's certificate can't be verified
    store_refused                no      any other refusal
    store_slow_down              yes     it asks for fewer requests
    store_failing                yes     an error of its own, or an answer that makes no sense
    store_timeout                yes     it is silent
    store_unreachable            yes     no connection
    store_cut                    yes     a connection ended in the middle of an object
    store_damaged_upload         yes     what arrived there is not what was sent

What passes has a `retry_after_s`. All are 503: the object may be there, and it is ours to mend.
"""

from __future__ import annotations

from dataclasses import dataclass

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3 import exceptions as http

from engine.adapters.store import ObjectChanged, ObjectMissing
from engine.errors import AdapterUnavailable


class StoreUnavailable(AdapterUnavailable):
    """It may pass by itself. asked_s: the pause that the store asks for."""

    code = "store_unavailable"
    asked_s = 0.0


class StoreRefused(AdapterUnavailable):
    """It lasts until somebody mends it."""

    code = "store_refused"
    default_retry_after_s = None


@dataclass(frozen=True, slots=True)
class Cause:
    """reason: for everybody. remedy: for who operates the store."""

    code: str
    passes: bool
    reason: str
    remedy: str = "Try again later"

    @property
    def public(self) -> str:
        """What a tenant can use of it: neither where the store is nor what it said."""
        remedy = "Try again later" if self.passes else "The service's operator must mend it"
        return f"The object store failed: {self.reason}. {remedy}."


BUCKET = Cause("store_bucket_missing", False, "there is no such bucket", "Correct {bucket}")
FORBIDDEN = Cause(
    "store_forbidden",
    False,
    "access was refused",
    "Allow these credentials to get, put, list and delete in {bucket}, or use others",
)
EXPIRED = Cause("store_credentials_expired", False, "the credentials have expired", "Renew them")
ABSENT = Cause(
    "store_no_credentials",
    False,
    "no credentials can be had",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role",
)
REGION = Cause(
    "store_wrong_region",
    False,
    "the bucket is in another region",
    "Add region= to the url of {bucket}",
)
CLOCK = Cause("store_clock_skewed", False, "this machine's clock is wrong", "Set it")
TLS = Cause(
    "store_tls_failed",
    False,
    "its certificate can't be verified",
    "Name its authority in AWS_CA_BUNDLE",
)
OTHER = Cause("store_refused", False, "it refused", "Its documentation says why")
SLOW = Cause("store_slow_down", True, "it asks to slow down")
FAILING = Cause("store_failing", True, "it fails")
TIMEOUT = Cause("store_timeout", True, "it is silent", "Look whether it is overloaded")
UNREACHABLE = Cause("store_unreachable", True, "no connection", "Look whether it runs")
CUT = Cause("store_cut", True, "the connection ended in the middle", "Try again")
DAMAGED = Cause("store_damaged_upload", True, "what arrived is not what was sent", "Try again")

BY_CODE = {
    "NoSuchBucket": BUCKET,
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "RequestExpired"), EXPIRED),
    **dict.fromkeys(("TokenRefreshRequired", "InvalidToken"), EXPIRED),
    **dict.fromkeys(("PermanentRedirect", "TemporaryRedirect", "301", "307"), REGION),
    **dict.fromkeys(("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"), REGION),
    "RequestTimeTooSkewed": CLOCK,
    **dict.fromkeys(("SlowDown", "ServiceUnavailable", "Throttling", "TooManyRequests"), SLOW),
    **dict.fromkeys(("RequestLimitExceeded", "ThrottlingException"), SLOW),
    "RequestTimeout": TIMEOUT,
    **dict.fromkeys(("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"), DAMAGED),
    "XAmzContentSHA256Mismatch": DAMAGED,
    "IncompleteBody": DAMAGED,
}
BY_STATUS = {301: REGION, 307: REGION, 401: FORBIDDEN, 403: FORBIDDEN, 429: SLOW, 503: SLOW}
BY_KIND: tuple[tuple[type[Exception], Cause], ...] = (
    (boto.NoCredentialsError, ABSENT),
    (boto.PartialCredentialsError, ABSENT),
    (boto.CredentialRetrievalError, ABSENT),
    (boto.TokenRetrievalError, ABSENT),
    (boto.SSOError, ABSENT),
    (boto.ProfileNotFound, ABSENT),
    (boto.SSLError, TLS),
    (http.SSLError, TLS),
    (boto.ConnectTimeoutError, TIMEOUT),
    (boto.ReadTimeoutError, TIMEOUT),
    (http.TimeoutError, TIMEOUT),
    (TimeoutError, TIMEOUT),
    (boto.ConnectionError, UNREACHABLE),
    (boto.HTTPClientError, UNREACHABLE),
    (ResponseParserError, FAILING),
    (http.HTTPError, CUT),
    (OSError, CUT),
)


def unavailable(error: Exception, what: str, bucket: str) -> AdapterUnavailable:
    """Our error for one of botocore's, urllib3's or a socket's at the object `what`."""
    if isinstance(error, boto.ClientError):
        return _of_answer(error, what, bucket)
    for kind, cause in BY_KIND:
        if isinstance(error, kind):
            return failure(cause, what, bucket, type(error).__name__)
    return failure(OTHER, what, bucket, type(error).__name__)


def failure(cause: Cause, what: str, bucket: str, said: str) -> AdapterUnavailable:
    kind = StoreUnavailable if cause.passes else StoreRefused
    remedy = cause.remedy.format(bucket=bucket)
    return kind(
        f"The object store failed at {what}: {cause.reason} ({said}). {remedy}.",
        code=cause.code,
        public=cause.public,
    )


def is_nameless(error: boto.ClientError) -> bool:
    """An answer to HEAD has no body, so its code is no more than its status."""
    return str(error.response["Error"].get("Code", "")).isdecimal()


def _of_answer(error: boto.ClientError, what: str, bucket: str) -> AdapterUnavailable:
    code = str(error.response["Error"].get("Code", ""))
    meta = error.response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 0))
    headers = meta.get("HTTPHeaders", {})
    if code == "NoSuchKey":
        return ObjectMissing(f"The object store has no object {what}. Publish it again.")
    if code == "PreconditionFailed" or status == 412:
        return ObjectChanged(f"Object {what} is no longer what it was. Try again.")
    cause = BY_CODE.get(code) or BY_STATUS.get(status) or (FAILING if status >= 500 else OTHER)
    said = f"{status} {code}" if code and not code.isdecimal() else str(status)
    if cause is REGION and (region := headers.get("x-amz-bucket-region")):
        said += f", it is {region}"
    mapped = failure(cause, what, bucket, said)
    if isinstance(mapped, StoreUnavailable) and headers.get("retry-after", "").isdecimal():
        mapped.asked_s = float(headers["retry-after"])
        mapped.retry_after_s = max(1.0, mapped.asked_s)
    return mapped

"""What an S3 store does when the network or the server misbehaves: a real server, a proxy that
harms (C-S3-ERRORS)."""

from __future__ import annotations

import dataclasses
import os
import re
import time

import pytest

from engine.adapters import s3_errors
from engine.adapters.attempts import Waiting
from engine.adapters.s3_address import S3Address
from engine.adapters.s3_errors import SLOW, failure
from engine.adapters.s3_store import S3Store
from engine.adapters.store import ObjectChanged, ObjectMissing, open_store
from engine.config import StoreOptions
from engine.errors import AdapterUnavailable, LoraplexError
from tests.support.fault_proxy import Fault
from tests.support.s3_server import IMPATIENT, new_prefix

KEY = "adapters/acme/0123/adapter_model.safetensors"
DATA = bytes(range(256)) * 4096
HASTY = dataclasses.replace(IMPATIENT, read_timeout_s=0.3, connect_timeout_s=0.3, max_attempts=3)
"""Where silence is waited for."""
PATIENT = dataclasses.replace(HASTY, read_timeout_s=5.0, connect_timeout_s=5.0, deadline_s=60.0)
"""Where nothing is to time out, whatever the machine is busy with."""


@pytest.fixture(scope="module")
def prefix(s3):
    """With one object in it, as the server has it."""
    prefix = new_prefix()
    s3.store(prefix).put(KEY, DATA)
    return prefix


@pytest.fixture
def store(s3, proxy, prefix):
    return s3.store(prefix, PATIENT, endpoint=proxy.endpoint)


def content(store, key=KEY, start=0):
    return b"".join(store.read(key, start))


# Cut, slow, damaged -------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", [
    Fault(cut_after=400_000),
    Fault(cut_after=400_000, cut_by="rst"),
    Fault(silent_after=400_000),
    Fault(cut_after=0),
], ids=["fin", "rst", "silent", "at once"])  # fmt: skip
def test_a_cut_read_goes_on_where_it_stopped_and_of_the_same_object(s3, proxy, prefix, fault):
    is_silent = fault.silent_after is not None
    options = dataclasses.replace(PATIENT, read_timeout_s=1.0) if is_silent else PATIENT
    store = s3.store(prefix, options, endpoint=proxy.endpoint)
    proxy.add(fault, times=2)
    assert content(store) == DATA
    first, *resumed = proxy.seen
    assert first.range is None and len(resumed) == 2
    assert all(s.if_match for s in resumed if s.range), "resumed with If-Match"
    sent = sum(s.num_bytes for s in proxy.seen)
    assert len(DATA) <= sent <= len(DATA) + 3 * 300_000, "what had arrived was not fetched again"


def test_an_object_that_is_replaced_in_the_middle_of_a_read_is_not_mixed(s3, proxy):
    prefix = new_prefix()
    direct, store = s3.store(prefix), s3.store(prefix, PATIENT, endpoint=proxy.endpoint)
    direct.put(KEY, DATA)
    proxy.add(Fault(cut_after=400_000), times=1)
    with store.open(KEY) as opened:
        got = next(opened.pieces)
        direct.put(KEY, DATA[::-1])
        with pytest.raises(ObjectChanged):
            for piece in opened.pieces:
                got += piece
    assert DATA.startswith(got)


def test_an_object_that_keeps_being_cut_without_progress_ends_in_its_cause(store, proxy):
    proxy.add(Fault(cut_after=0))
    with pytest.raises(AdapterUnavailable, match="3 attempts") as raised:
        content(store)
    assert raised.value.code == "store_cut" and raised.value.retry_after_s is not None
    assert proxy.num_gets(KEY) == PATIENT.max_attempts


def test_progress_earns_new_attempts(s3, proxy, prefix):
    store = s3.store(prefix, PATIENT, endpoint=proxy.endpoint)
    proxy.add(Fault(cut_after=100_000))
    assert content(store) == DATA
    assert proxy.num_gets(KEY) > PATIENT.max_attempts


def test_a_store_that_drips_is_given_up_at_the_deadline(s3, proxy, prefix):
    options = dataclasses.replace(HASTY, deadline_s=0.5)
    store = s3.store(prefix, options, endpoint=proxy.endpoint)
    proxy.add(Fault(bytes_per_s=20_000))  # a minute for all of it
    began = time.monotonic()
    with pytest.raises(AdapterUnavailable) as raised:
        content(store)
    assert raised.value.code == "store_timeout"
    assert time.monotonic() - began < 20


def test_a_wrong_length_is_no_object(store, proxy):
    proxy.add(Fault(longer_by=100))
    with pytest.raises(AdapterUnavailable) as raised:
        content(store)
    assert raised.value.code in ("store_cut", "store_failing")


def test_a_slow_store_is_waited_for(s3, proxy, prefix):
    store = s3.store(prefix, PATIENT, endpoint=proxy.endpoint)
    proxy.add(Fault(latency_s=0.1, bytes_per_s=2e6))
    assert content(store) == DATA
    assert proxy.num_gets(KEY) == 1


# Refused ------------------------------------------------------------------------------------------
REFUSALS = [
    ((403, "AccessDenied"), "store_forbidden", False),
    ((403, "InvalidAccessKeyId"), "store_forbidden", False),
    ((403, "SignatureDoesNotMatch"), "store_forbidden", False),
    ((400, "ExpiredToken"), "store_credentials_expired", False),
    ((403, "RequestTimeTooSkewed"), "store_clock_skewed", False),
    ((301, "PermanentRedirect"), "store_wrong_region", False),
    ((400, "AuthorizationHeaderMalformed"), "store_wrong_region", False),
    ((404, "NoSuchBucket"), "store_bucket_missing", False),
    ((405, "MethodNotAllowed"), "store_refused", False),
    ((503, "SlowDown"), "store_slow_down", True),
    ((500, "InternalError"), "store_failing", True),
    ((502, ""), "store_failing", True),
]


@pytest.mark.parametrize(("answer", "code", "passes"), REFUSALS, ids=str)
def test_each_refusal_has_its_own_code_and_is_never_an_absence(store, proxy, answer, code, passes):
    proxy.add(Fault(answer=answer), method=None)
    calls = [
        lambda: content(store),
        lambda: store.size(KEY),
        lambda: store.list(""),
        lambda: store.put("a/b", b"x"),
        lambda: store.delete("a/b"),
        lambda: store.drop_unfinished(0.0),
    ]
    for call in calls:
        with pytest.raises(AdapterUnavailable) as raised:
            call()
        error = raised.value
        assert (error.code, error.retry_after_s is not None) == (code, passes), error.message
        assert not isinstance(error, ObjectMissing) and error.status == 503
        assert answer[1] in error.message or answer[1] == "NoSuchBucket"


def test_an_absent_object_is_missing_whatever_is_asked(store, proxy):
    assert store.size("adapters/acme/none") is None
    with pytest.raises(ObjectMissing):
        content(store, "adapters/acme/none")
    proxy.add(Fault(answer=(404, "NoSuchKey")), method=None)
    assert store.size(KEY) is None


def test_the_region_that_a_bucket_is_in_is_told(store, proxy):
    headers = (("x-amz-bucket-region", "eu-north-1"),)
    proxy.add(Fault(answer=(301, "PermanentRedirect"), headers=headers), method=None)
    with pytest.raises(AdapterUnavailable, match="eu-north-1") as raised:
        content(store)
    assert "region=" in raised.value.message


def test_slow_down_is_obeyed_and_passes(store, proxy):
    proxy.add(Fault(answer=(503, "SlowDown")), times=2, method=None)
    assert content(store) == DATA
    proxy.add(Fault(answer=(503, "SlowDown")), times=2, method=None)
    store.put("a/c", b"x")
    assert content(store, "a/c") == b"x"


CAUSES = [cause for cause in vars(s3_errors).values() if isinstance(cause, s3_errors.Cause)]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.code)
def test_tenants_are_told_the_reason_and_not_where(cause):
    error = failure(cause, "adapters/t/x", "my-bucket", "500 Odd at 10.0.0.7")
    assert "adapters/t/x" in error.message and "500 Odd" in error.message
    assert not re.search(r"my-bucket|adapters/|Odd|[{}(]", error.public)
    assert re.fullmatch(r"The object store failed: \S.{5,}\. (Try|The).*\.", error.public)
    assert ("Try again later" in error.public) == cause.passes


def test_a_store_s_own_retry_after_is_kept_to():
    now, pauses = [0.0], []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    waiting = Waiting(lambda: now[0], sleep, lambda: 0.0)
    store = S3Store(S3Address.parse("s3://bucket?endpoint=http://127.0.0.1:9"), HASTY, waiting)
    slow = failure(SLOW, "a", "bucket", "503 SlowDown")
    attempts = store._attempts()
    attempts.pause(slow, asked_s=3.0)
    assert pauses == [3.0]
    with pytest.raises(AdapterUnavailable):
        attempts.pause(slow, asked_s=100.0)


def test_silence_and_no_server_have_names_of_their_own(s3, proxy, prefix, free_port):
    store = s3.store(prefix, HASTY, endpoint=proxy.endpoint)
    proxy.add(Fault(black_hole=True), method=None)
    with pytest.raises(AdapterUnavailable, match="silent") as raised:
        store.size(KEY)
    assert raised.value.code == "store_timeout" and raised.value.retry_after_s is not None
    gone = s3.store("p", HASTY, endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(AdapterUnavailable, match="no connection") as raised:
        gone.list("")
    assert raised.value.code == "store_unreachable" and raised.value.retry_after_s is not None


def test_real_credentials_are_really_checked(s3, prefix, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "WRONG")
    with pytest.raises(AdapterUnavailable) as raised:
        s3.store(prefix).size(KEY)
    assert raised.value.code == "store_forbidden"
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(AdapterUnavailable, match="AWS_ACCESS_KEY_ID") as raised:
        s3.store(prefix).size(KEY)
    assert raised.value.code == "store_no_credentials"


# Uploads ------------------------------------------------------------------------------------------
def test_an_upload_in_parts_outlives_cuts_and_lost_answers(s3, proxy, tmp_path):
    prefix = new_prefix()
    store = s3.store(prefix, IMPATIENT, endpoint=proxy.endpoint)
    data = os.urandom(2 * IMPATIENT.part_bytes + 5)
    (tmp_path / "big").write_bytes(data)
    proxy.add(Fault(answer=(503, "SlowDown")), method="PUT", times=1)
    proxy.add(Fault(cut_after=0), method="PUT", times=1)
    proxy.add(Fault(cut_after=0), method="POST", key="uploadId=", times=1)
    assert store.put("a/big", tmp_path / "big") == len(data)
    assert content(s3.store(prefix), "a/big") == data


def test_an_upload_that_fails_shows_nothing_and_leaves_nothing(s3, proxy, tmp_path):
    prefix = new_prefix()
    store, direct = s3.store(prefix, IMPATIENT, endpoint=proxy.endpoint), s3.store(prefix)
    (tmp_path / "big").write_bytes(os.urandom(2 * IMPATIENT.part_bytes))
    proxy.add(Fault(answer=(500, "InternalError")), key="partNumber=2", method="PUT")
    with pytest.raises(AdapterUnavailable):
        store.put("a/big", tmp_path / "big")
    assert direct.list("") == [] and direct.size("a/big") is None
    assert direct.drop_unfinished(time.time() + 3600) == 0


# Addresses ----------------------------------------------------------------------------------------
def test_an_address_says_where():
    url = "s3://my-bucket/some/prefix/?endpoint=https://minio.local:9000/&region=eu-1"
    address = S3Address.parse(url)
    assert address == S3Address(
        "my-bucket", "some/prefix", "https://minio.local:9000", "eu-1", path_style=True
    )
    assert address.url == "s3://my-bucket/some/prefix"
    assert S3Address.parse("s3://my-bucket") == S3Address("my-bucket")
    assert S3Address.parse(url + "&path_style=false").path_style is False


@pytest.mark.parametrize("url", [
    "s3://", "s3:///prefix", "s3://UPPER/p", "s3://b/p", "s3://bucket/../x", "s3://bucket/a//b",
    "s3://bucket/p?endpoint=minio:9000", "s3://bucket/p?endpoint=http://h/path",
    "s3://bucket/p?path_style=yes", "s3://bucket/p?regoin=x", "s3://bucket/p?region=",
    "s3://bucket/p#f", "s3://key:secret@bucket/p", "s3://bucket?endpoint=http://u:p@h",
    "s3://bucket/p?aws_secret_access_key=x", "s3://bucket/p?session_token=x",
])  # fmt: skip
def test_an_address_that_is_none_is_refused_with_the_remedy(url):
    with pytest.raises(LoraplexError) as raised:
        open_store(url, StoreOptions())
    assert raised.value.code == "invalid_store_url"
    assert "secret" not in raised.value.message.replace("AWS_SECRET_ACCESS_KEY", "")

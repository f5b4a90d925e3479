"""The newest reason counts, success ends it, and a flood of failures takes no memory."""

from deployments.replica.load_failures import LoadFailures
from engine.errors import AdapterUnavailable
from engine.messages import LoadDone


def done(key, why=None):
    error = None if why is None else AdapterUnavailable(why).info()
    return LoadDone(1, key, None, error, 0.1, False)


def test_the_newest_reason_until_it_loads():
    failures = LoadFailures()
    failures.note(done("t/a", "no disk"))
    failures.note(done("t/a", "no bucket"))
    failures.note(done("t/b"))
    assert failures.reasons() == {"t/a": "no bucket"}
    failures.note(done("t/a"))
    assert failures.reasons() == {}


def test_tenants_are_told_of_no_bucket():
    failures = LoadFailures()
    error = AdapterUnavailable("bucket b is gone", public="the store failed").info()
    failures.note(LoadDone(1, "t/a", None, error, 0.1, False))
    failures.note(done("t/b", "too slow"))
    assert failures.told() == {
        "failed": {"t/a": "bucket b is gone", "t/b": "too slow"},
        "failed_public": {"t/a": "the store failed", "t/b": "too slow"},
    }


def test_the_oldest_go_first():
    failures = LoadFailures(max_kept=2)
    for key in ("t/a", "t/b", "t/a", "t/c"):
        failures.note(done(key, "why"))
    assert list(failures.reasons()) == ["t/a", "t/c"]
